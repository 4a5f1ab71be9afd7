"""Killed and resumed, a run ends as the one that was left alone."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import (
    Applied,
    Checkpoint,
    Complete,
    DatabasePath,
    EpochStart,
    Init,
    Log,
    ResumeState,
    Step,
)
from grpo_trainer.checkpoint import read_state
from run_results import files_of, logged_steps, rows_of
from trainers import StartTrainer, TrainerProcess, training_words

STEPS = 8


@pytest.fixture
def run(start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path) -> Any:
    """Starts a run in a folder of the given name, with the same data every time."""

    def start(name: str, *words: str, **settings: Any) -> TrainerProcess:
        settings = {
            "output_dir": tmp_path / name,
            "max_steps": STEPS,
            "save_interval": 5,
            "learning_rate": 1e-3,
            **settings,
        }
        words = tuple(training_words(tmp_path, qwen3_folder, **settings)) + words
        return start_trainer([*words, "--events"])

    return start


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora_dropout": 0.3, "gradient_accumulation_steps": 2, "batch_size": 1},
        {"fine_tune_type": "full"},
    ],
    ids=["lora", "dropout and accumulation", "full"],
)
def test_R15_R17_killed_and_resumed_equals_left_alone(
    run: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    whole = run("whole", **settings)
    killed = run("killed", **settings)
    killed.wait_for(Step, lambda step: step.step == 6)
    killed.kill()
    killed.wait()
    assert whole.wait() == 0
    resumed = run("killed", "--resume", **settings)
    assert resumed.wait() == 0, str(resumed)
    assert [step.step for step in resumed.all(Step)] == [6, 7, 8]
    for name in ("checkpoint-5", "final"):
        expected = files_of(tmp_path / "whole" / name)
        assert expected
        assert files_of(tmp_path / "killed" / name) == expected
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
    assert [row["step"] for row in logged_steps(tmp_path / "killed")] == list(range(1, STEPS + 1))
    assert logged_steps(tmp_path / "killed") == logged_steps(tmp_path / "whole")


def test_a_stopped_run_goes_on_under_the_same_id(run: Any, tmp_path: Path) -> None:
    stopped = run("run")
    stopped.wait_for(Step, lambda step: step.step == 2)
    stopped.send("STOP")
    assert stopped.wait() == 0
    done = stopped.all(Complete)[0].total_steps
    assert done < STEPS
    resumed = run("run", "--resume")
    assert resumed.wait() == 0, str(resumed)
    assert [step.step for step in resumed.all(Step)] == list(range(done + 1, STEPS + 1))
    first, second = (r.all(DatabasePath)[0].run_id for r in (stopped, resumed))
    assert first == second
    assert read_state(tmp_path / "run" / "final").run_id == first
    with sqlite3.connect(tmp_path / "run" / "outputs.db") as db:
        query = "SELECT id, status, total_steps FROM training_runs"
        assert db.execute(query).fetchall() == [(first, "completed", STEPS)]


def test_the_state_is_told_before_the_settings(run: Any) -> None:
    """Six prompts, two a step: five steps end in the middle of the second epoch."""
    stopped = run("run", max_steps=5)
    assert stopped.wait() == 0
    resumed = run("run", "--resume")
    assert resumed.wait() == 0
    (state,) = resumed.all(ResumeState)
    assert (state.step, state.epoch, state.total_epochs) == (5, 2, 3)
    assert (state.step_in_epoch, state.total_steps_in_epoch) == (2, 3)
    kinds = (DatabasePath, ResumeState, Init, EpochStart, Step)
    order = [type(e) for e in resumed.events() if isinstance(e, kinds)]
    assert order[:5] == [DatabasePath, ResumeState, Init, EpochStart, Step]


def test_latest_without_any_checkpoint_starts_and_says_so(run: Any) -> None:
    trainer = run("run", "--resume", max_steps=1)
    assert trainer.wait() == 0
    assert [step.step for step in trainer.all(Step)] == [1]
    assert any("starting at step 0" in log.message for log in trainer.all(Log))
    assert not trainer.all(ResumeState)


def test_a_finished_run_has_nothing_left_to_do(run: Any, tmp_path: Path) -> None:
    assert run("run", max_steps=3).wait() == 0
    before = files_of(tmp_path / "run" / "final")
    again = run("run", "--resume", max_steps=3)
    assert again.wait() == 0
    assert not again.all(Step)
    assert files_of(tmp_path / "run" / "final") == before


def test_another_folder_may_continue_a_checkpoint(run: Any, tmp_path: Path) -> None:
    assert run("first", max_steps=5).wait() == 0
    path = tmp_path / "first" / "checkpoint-5"
    before = {p: p.read_bytes() for p in (tmp_path / "first").rglob("*") if p.is_file()}
    second = run("second", f"--resume={tmp_path / 'first' / 'final'}")
    second.send("STOP")
    assert second.wait() == 0
    answer = second.wait_for(Applied)
    assert answer.path is None or Path(answer.path, "manifest.json").exists()
    assert all(Path(event.path).exists() for event in second.all(Checkpoint))
    assert {p: p.read_bytes() for p in before} == before
    assert not path.exists() or read_state(path).step == 5


def test_other_data_is_refused_before_anything_is_touched(run: Any, tmp_path: Path) -> None:
    assert run("run", max_steps=3).wait() == 0
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "a", "answer": "b"}\n')
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    trainer = run("run", "--resume", data=other)
    assert trainer.wait() == 2
    assert "was written with another dataset" in trainer.stdout
    after = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert after == before
