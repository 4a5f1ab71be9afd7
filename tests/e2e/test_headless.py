"""Whole runs as people and dashboards start them: what they say, write, and leave behind."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trainers
from grpo_protocol import GRPOConfig
from grpo_protocol.config import config_keys, config_values
from grpo_protocol.messages import (
    Complete,
    DatabasePath,
    EpochStart,
    Eval,
    Event,
    Generation,
    Hello,
    Init,
    Log,
    ResumeState,
    Status,
    Step,
)
from stream_reader import SECONDS
from tiny_model import EOS_ID, tiny_model
from trainers import StartTrainer, TrainerProcess, read_log, training_words

# Whatever a reward function may do to its output, and a note of the process that it runs in.
NOISY = r"""
import os, pathlib, subprocess, sys, warnings

pathlib.Path(__file__).with_name("worker.pid").write_text(str(os.getpid()))

def letters(completions, **_):
    print("a stray print")
    print('{"type":"step","step":999,"loss":1.0,"totalTokens":1}')
    os.write(1, b"raw bytes \xff\n")
    os.write(2, b"raw errors\n")
    os.system("echo from a shell")
    subprocess.run(["echo", "from a child"])
    warnings.warn("a warning")
    print("\rhalf a bar", end="\r")
    print("no newline", end="")
    return [sum(char.isalpha() for char in text) / 10 for text in completions]
"""


@dataclass
class Finished:
    """A run that is over."""

    folder: Path
    data: Path
    trainer: TrainerProcess
    events: list[Event]
    code: int

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        uri = f"file:{self.folder / 'outputs.db'}?mode=ro&immutable=1"
        with sqlite3.connect(uri, uri=True) as db:
            return db.execute(sql).fetchall()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """One run with events: two epochs of three steps, held-out prompts, a noisy reward."""
    here = tmp_path_factory.mktemp("finished")
    (here / "reward.py").write_text(NOISY)
    data = here / "data.jsonl"
    words = training_words(
        here,
        tiny_model(),
        max_steps=6,
        save_interval=4,
        eval_data=data,
        eval_interval=3,
        run_name="my run",
        temperature=0.9,
    )
    trainer = trainers.start_trainer([*words, "--events"], cwd=here)
    code = trainer.wait()
    yield Finished(here / "run", data, trainer, trainer.events(), code)
    trainer.end()


# --- the order of events


def test_the_run_succeeds_quietly(finished: Finished) -> None:
    assert finished.code == 0
    assert finished.trainer.stderr == ""


def test_events_come_in_the_order_of_the_contract(finished: Finished) -> None:
    kinds = [type(event) for event in finished.events]
    assert kinds[0] is Hello
    assert kinds[1] is Status
    order = [kinds.index(kind) for kind in (Hello, Status, DatabasePath, Init, EpochStart, Step)]
    assert order == sorted(order)
    assert ResumeState not in kinds
    assert kinds.count(Complete) == kinds.count(Init) == kinds.count(Hello) == 1
    # What a reward function left in its buffers comes when its process ends.
    last = next(event for event in reversed(finished.events) if not isinstance(event, Log))
    assert isinstance(last, Complete)
    assert (last.total_steps, last.status, last.reason) == (6, "completed", None)


def test_completions_follow_their_step(finished: Finished) -> None:
    current = None
    for event in finished.events:
        if isinstance(event, Step):
            current = event.step
        if isinstance(event, Generation):
            assert event.step == current
    assert [step.step for step in finished.all(Step)] == [1, 2, 3, 4, 5, 6]


def test_W26_init_carries_every_setting(finished: Finished) -> None:
    (init,) = finished.all(Init)
    values = msgspec.structs.asdict(init.config)
    assert set(values) == {key.name for key in config_keys()} | {"training_type"}
    assert msgspec.UNSET not in values.values()
    expected = config_values(
        GRPOConfig(
            model=str(tiny_model()),
            data=str(finished.data),
            eval_data=str(finished.data),
            reward=[str(finished.data.with_name("reward.py"))],
            output_dir=str(finished.folder),
            run_name="my run",
            max_completion_length=6,
            group_size=4,
            batch_size=2,
            max_steps=6,
            save_interval=4,
            eval_interval=3,
            temperature=0.9,
            learning_rate=1e-5,
            tui_mode=True,
        )
    )
    assert init.config == expected
    assert init.max_steps == 6


def test_a_step_tells_all_that_is_known(finished: Finished) -> None:
    for step in finished.all(Step):
        known = msgspec.structs.asdict(step)
        unknown = {name for name, value in known.items() if value is None}
        assert unknown <= {"perplexity", "token_accuracy"}
        assert {
            "rewards/letters/mean",
            "rewards/letters/std",
            "completions/mean_length",
            "completions/clipped_ratio",
            "frac_reward_zero_std",
            "entropy",
            "num_tokens",
        } <= set(step.metrics)
        assert step.epoch == (1 if step.step <= 3 else 2)
        assert step.step_in_epoch == (step.step - 1) % 3 + 1


def test_M15_a_completion_tells_all_that_is_known(finished: Finished) -> None:
    told = finished.all(Generation)
    assert len(told) == 6 * 8
    for index, event in enumerate(told):
        assert (event.index, event.prompt_index, event.group_index) == (
            index % 8,
            *divmod(index % 8, 4),
        )
        assert event.tokens == len(event.token_ids) <= 6
        assert event.reward_details == {"letters": event.reward}
        assert event.expected_answer is not None
        ended = event.token_ids[-1] == EOS_ID
        assert event.finish_reason == ("stop" if ended else "length")
        assert EOS_ID not in event.token_ids[:-1]
        assert "<|im_end|>" not in event.completion


# --- what others print


def test_R02_what_others_print_becomes_log_lines(finished: Finished) -> None:
    assert not any(step.step == 999 for step in finished.all(Step))
    lines = [event.message for event in finished.all(Log)]
    for text in (
        "a stray print",
        '{"type":"step","step":999,"loss":1.0,"totalTokens":1}',
        "raw bytes \ufffd",
        "raw errors",
        "from a shell",
        "from a child",
        "a warning",
        "no newline",
    ):
        assert any(text in line for line in lines), text
    assert {event.source for event in finished.all(Log)} <= {"trainer", "reward"}


@pytest.mark.fresh
def test_R02_prints_in_the_trainer_s_own_process_become_log_lines(
    tmp_path: Path, start_program: Any
) -> None:
    program = start_program(
        """
import os, sys
from grpo_trainer import GRPOTrainer, load_config

def noisy(completions, **_):
    print("printed")
    print("to stderr", file=sys.stderr)
    os.write(1, b"written\\n")
    os.system("echo shell")
    return [float(len(text)) for text in completions]

config = load_config({"model": sys.argv[1], "output_dir": "run", "max_steps": 2, "group_size": 2,
                      "max_completion_length": 4, "tui_mode": True})
with GRPOTrainer.create(config, reward_functions=[noisy]) as trainer:
    trainer.train([{"prompt": "a"}, {"prompt": "b"}])
print("after the run")
"""
    )
    assert program.returncode == 0, program.stderr
    *events, last = program.stdout.splitlines()
    assert last == b"after the run"
    told = [json.loads(line) for line in events]
    assert told[0]["type"] == "hello"
    assert told[-1]["type"] == "complete"
    logs = {(event.get("source"), event["message"]) for event in told if event["type"] == "log"}
    assert {
        ("stdout", "printed"),
        ("stderr", "to stderr"),
        ("stdout", "written"),
        ("stdout", "shell"),
    } <= logs


@pytest.fixture
def start_program(tmp_path: Path) -> Any:
    """Runs a program that uses the library."""

    def run(code: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [sys.executable, "-c", code, str(tiny_model())],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )

    return run


def test_R02_prints_break_nothing_when_the_dashboard_is_gone(
    start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path
) -> None:
    (tmp_path / "reward.py").write_text(NOISY)
    words = training_words(tmp_path, qwen3_folder, max_steps=5)
    trainer = start_trainer([*words, "--events"])
    trainer.wait_for(Step)
    trainer.close_stdout()
    assert trainer.wait() == 0, trainer.stderr
    records = read_log(tmp_path / "run")
    assert [record["step"] for record in records if record["event"] == "step"] == [1, 2, 3, 4, 5]
    prints = [r for r in records if r["event"] == "log" and "a stray print" in r["message"]]
    assert len(prints) == 5


# --- what is left behind


def test_every_step_and_completion_is_recorded(finished: Finished) -> None:
    steps = finished.query(
        """SELECT step, epoch, loss, mean_reward, gradient_norm, state
           FROM training_steps ORDER BY step"""
    )
    assert steps == [
        (e.step, e.epoch, e.loss, e.mean_reward, e.gradient_norm, "done")
        for e in finished.all(Step)
    ]
    rows = finished.query(
        """SELECT step, batch_index, group_index, prompt, completion_raw, num_tokens,
                  finish_reason, reward, advantage, token_ids, expected_answer
           FROM generations JOIN training_steps ON step_id = training_steps.id
           ORDER BY step, batch_index, group_index"""
    )
    told = [
        (
            e.step,
            e.prompt_index,
            e.group_index,
            e.prompt,
            e.completion,
            e.tokens,
            e.finish_reason,
            e.reward,
            e.advantage,
            e.token_ids,
            e.expected_answer,
        )
        for e in finished.all(Generation)
    ]
    assert [(*row[:9], json.loads(row[9]), row[10]) for row in rows] == told


def test_the_row_of_the_run_is_closed(finished: Finished) -> None:
    rows = finished.query("SELECT id, name, status, total_steps, ended_at > 0 FROM training_runs")
    (path,) = finished.all(DatabasePath)
    assert rows == [(path.run_id, "my run", "completed", 6, 1)]
    assert finished.query("PRAGMA integrity_check") == [("ok",)]
    evaluations = finished.query("SELECT step FROM evaluations ORDER BY id")
    assert evaluations == [(e.step,) for e in finished.all(Eval)] == [(0,), (3,), (6,)]


def test_nothing_but_results_is_left_in_the_folder(finished: Finished) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    assert names == {"outputs.db", "my run.jsonl", "checkpoint-4", "final"}


def test_no_process_is_left(finished: Finished) -> None:
    worker = int(finished.data.with_name("worker.pid").read_text())
    for pid in (worker, finished.trainer.pid):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_log_file_holds_each_step_once(finished: Finished) -> None:
    records = read_log(finished.folder)
    steps = [(r["step"], r["mean_reward"]) for r in records if r["event"] == "step"]
    assert steps == [(e.step, e.mean_reward) for e in finished.all(Step)]
    assert records[0]["event"] == "training_start"
    assert records[-1]["event"] == "training_complete"
