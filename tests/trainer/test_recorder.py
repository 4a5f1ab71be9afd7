"""The SQLite record holds every step and completion, whatever their values."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from grpo_protocol.config import GRPOConfig
from grpo_protocol.database import SCHEMA_VERSION
from grpo_protocol.messages import Eval, Log, ToolCall
from grpo_trainer.output.recorder import NullRecorder, Recorder
from recorded_runs import generation, record, recorders, rows, step

Open = Callable[..., Recorder]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "outputs.db"


@pytest.fixture
def open_recorder(path: Path) -> Iterator[Open]:
    with recorders(path) as open_one:
        yield open_one


def test_a_run_is_whole_in_one_file(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    for number in range(1, 11):
        record(recorder, number)
    recorder.end("completed", 10)
    recorder.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["outputs.db"]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(path, "SELECT step, state FROM training_steps ORDER BY step") == [
        (number, "done") for number in range(1, 11)
    ]
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(40,)]
    (run,) = rows(
        path,
        "SELECT id, name, model_name, model_path, config, total_steps, status,"
        " started_at <= ended_at FROM training_runs",
    )
    assert run[:4] == (recorder.run_id, "a run", "tiny", "/models/tiny")
    assert msgspec.json.decode(run[4], type=GRPOConfig).group_size == 8
    assert run[5:] == (10, "completed", 1)


def test_everything_known_of_a_completion_is_kept(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    call = ToolCall("invalid_json", "search", '{"q":', "<tool_call>", "cut off")
    recorder.scored(
        1,
        2,
        [
            generation(
                1,
                prompt_index=3,
                advantage=-0.5,
                reward=0.25,
                reward_details={"format": 0.5, "answer": None},
                expected_answer="5",
                thinking="hm",
                tool_calls=[call],
                token_ids=[1, 2, 3],
                completion="<think>hm</think>5",
            )
        ],
        texts=["5"],
    )
    recorder.close()
    assert rows(
        path,
        "SELECT batch_index, group_index, prompt, expected_answer, completion_text,"
        " completion_raw, thinking, num_tokens, finish_reason, reward, reward_details, advantage,"
        " token_ids FROM generations",
    ) == [
        (
            *(3, 1, "2+3=", "5", "5", "<think>hm</think>5", "hm", 7, "stop", 0.25),
            *('{"format":0.5,"answer":null}', -0.5, "[1,2,3]"),
        )
    ]
    assert rows(
        path,
        "SELECT call_index, status, tool_name, arguments, raw_content, error_message"
        " FROM tool_calls",
    ) == [(0, "invalid_json", "search", '{"q":', "<tool_call>", "cut off")]


def test_R32_samples_and_rewards_are_kept_when_the_update_fails(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    recorder.scored(3, 1, [generation(index) for index in range(4)])
    recorder.end("crashed", 2)
    recorder.close()
    assert rows(path, "SELECT step, state, loss, mean_reward, epoch FROM training_steps") == [
        (3, "scored", None, 1.5, 1)
    ]
    ((std,),) = rows(path, "SELECT std_reward FROM training_steps")
    assert std == pytest.approx(1.2909944)  # ddof 1
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(4,)]
    assert rows(path, "SELECT status, total_steps FROM training_runs") == [("crashed", 2)]


def test_W38_epoch_total_steps_memory_and_gradient_norm_are_kept_while_running(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    record(
        recorder,
        4,
        epoch=2,
        gradient_norm=0.75,
        peak_memory_mb=12.5,
        active_memory_mb=3.5,
        metrics={"kl": 0.1},
    )
    assert recorder.commit()
    assert rows(
        path,
        "SELECT epoch, gradient_norm, peak_memory_mb, active_memory_mb, metrics"
        " FROM training_steps",
    ) == [(2, 0.75, 12.5, 3.5, '{"kl":0.1}')]
    assert rows(path, "SELECT total_steps, status, ended_at FROM training_runs") == [
        (4, "running", None)
    ]


def test_the_epoch_of_the_scored_step_stays_when_the_update_does_not_tell_it(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    recorder.scored(1, 5, [generation(0)])
    recorder.done(step(1))
    assert recorder.commit()
    assert rows(path, "SELECT epoch, mean_reward, loss FROM training_steps") == [(5, 0.0, 0.5)]


def test_W39_W43_token_counts_and_finish_reasons_are_those_of_the_completion(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    reasons = ["stop", "length", "repetition"]
    recorder.scored(
        1,
        1,
        [generation(i, tokens=10 + i, finish_reason=reason) for i, reason in enumerate(reasons)],
    )
    assert recorder.commit()
    assert rows(path, "SELECT num_tokens, finish_reason FROM generations ORDER BY id") == [
        (10, "stop"),
        (11, "length"),
        (12, "repetition"),
    ]


def test_W40_a_step_whose_numbers_are_not_finite_keeps_its_row(
    path: Path, open_recorder: Open
) -> None:
    nan, inf = float("nan"), float("inf")
    recorder = open_recorder()
    recorder.scored(
        1,
        1,
        [
            generation(0, reward=nan, advantage=nan, reward_details={"a": nan}),
            generation(1, reward=None),
            generation(2, reward=-inf),
            generation(3, reward=2.0, tokens=2**70),
        ],
    )
    recorder.done(step(1, loss=nan, gradient_norm=inf, metrics={"kl": nan}))
    assert recorder.commit()
    assert recorder.failed_writes == 0
    assert rows(path, "SELECT loss, gradient_norm, metrics, mean_reward FROM training_steps") == [
        (None, None, '{"kl":null}', 2.0)
    ]
    assert rows(path, "SELECT reward, num_tokens FROM generations ORDER BY id") == [
        (None, 7),
        (None, 7),
        (None, 7),
        (2.0, 2**63 - 1),
    ]


def test_R07_text_that_has_no_utf8_form_is_kept_with_replacements(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder(config=GRPOConfig(model="caf\udce9"), run_name="n\ud800")
    recorder.scored(
        1,
        1,
        [generation(0, completion="a\ud83d\x00\x1b[2J", reward_details={"r\ud83d": 1.0})],
    )
    recorder.log(Log("info", "l\ud83d"))
    assert recorder.commit()
    assert rows(path, "SELECT completion_raw, reward_details FROM generations") == [
        ("a\ufffd\x00\x1b[2J", '{"r\ufffd":1.0}')
    ]
    assert rows(path, "SELECT message FROM logs") == [("l\ufffd",)]
    ((name, config),) = rows(path, "SELECT name, config FROM training_runs")
    assert name == "n\ufffd"
    assert msgspec.json.decode(config, type=GRPOConfig).model == "caf\ufffd"


def test_logs_evaluations_and_settings(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.log(Log("warn", "careful", "reward"))
    recorder.evaluation(Eval(2, "held-out", 200, {"accuracy": 0.5, "kl": float("nan")}))
    recorder.setting(3, "temperature", "0.7")
    assert recorder.commit()
    assert rows(path, "SELECT run_id, level, target, message FROM logs") == [
        (recorder.run_id, "warn", "reward", "careful")
    ]
    assert rows(path, "SELECT step, name, num_prompts, metrics FROM evaluations") == [
        (2, "held-out", 200, '{"accuracy":0.5,"kl":null}')
    ]
    assert rows(path, "SELECT step, key, value FROM setting_changes") == [(3, "temperature", "0.7")]


def test_R17_a_resumed_run_keeps_its_id_and_holds_each_step_once(
    path: Path, open_recorder: Open
) -> None:
    first = open_recorder()
    other = open_recorder(run_name="another run")
    record(other, 9)
    for number in range(1, 13):
        record(first, number)
        first.evaluation(Eval(number, "held-out", 1, {}))
        first.setting(number, "seed", "1")
        first.commit()
    first.end("crashed", 12)
    for recorder in (first, other):
        recorder.close()

    again = open_recorder(run_id=first.run_id, resume_after_step=8)
    assert again.run_id == first.run_id
    mine = "FROM training_steps WHERE run_id = ? ORDER BY step"
    assert [s for (s,) in rows(path, f"SELECT step {mine}", first.run_id)] == list(range(1, 9))
    assert rows(path, "SELECT status, ended_at, total_steps FROM training_runs LIMIT 1") == [
        ("running", None, 8)
    ]
    for table in ("evaluations", "setting_changes"):
        assert rows(path, f"SELECT COUNT(*), MAX(step) FROM {table}") == [(8, 8)]
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(8 * 4 + 4,)]
    record(again, 9)
    again.commit()
    assert rows(path, f"SELECT COUNT(*) {mine}", first.run_id) == [(9,)]
    assert rows(path, "SELECT COUNT(*) FROM training_runs") == [(2,)]


def test_resuming_removes_what_was_logged_after_that_step(path: Path, open_recorder: Open) -> None:
    first = open_recorder()
    for number in (1, 2):
        first.log(Log("info", f"before the end of {number}"))
        first.commit()
        time.sleep(0.002)  # times are kept in milliseconds
        record(first, number)
        first.commit()
        time.sleep(0.002)
    first.close()
    open_recorder(run_id=first.run_id, resume_after_step=1)
    assert rows(path, "SELECT message FROM logs") == [("before the end of 1",)]


def test_a_run_that_the_file_does_not_know_goes_on_under_its_id(
    path: Path, open_recorder: Open
) -> None:
    open_recorder(run_id="an earlier id", resume_after_step=4)
    assert rows(path, "SELECT id, total_steps FROM training_runs") == [("an earlier id", 4)]


def test_a_step_recorded_again_replaces_the_first_attempt(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.scored(1, 1, [generation(0, tool_calls=[ToolCall("ok")])])
    record(recorder, 1)
    assert recorder.commit()
    assert rows(path, "SELECT COUNT(*) FROM training_steps") == [(1,)]
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(4,)]
    assert rows(path, "SELECT COUNT(*) FROM tool_calls") == [(0,)]


def test_recording_can_be_off() -> None:
    recorder: Recorder | NullRecorder = NullRecorder()
    recorder.scored(1, 1, [generation(0)])
    recorder.done(step(1))
    recorder.log(Log("info", "x"))
    recorder.evaluation(Eval(1, "x", 1, {}))
    recorder.setting(1, "a", "b")
    assert recorder.commit()
    recorder.end("completed", 1)
    recorder.close()
    assert recorder.run_id is None
