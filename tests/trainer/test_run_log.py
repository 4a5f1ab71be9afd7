"""The JSONL log file: whole records, each step once, also after a crash."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from grpo_protocol.config import GRPOConfig, config_values
from grpo_protocol.messages import (
    Checkpoint,
    Complete,
    EpochEnd,
    EpochStart,
    Eval,
    Failed,
    Init,
    Log,
    PhaseChange,
    Step,
)
from grpo_trainer.output.run_log import RunLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def step(number: int, **fields: Any) -> Step:
    return Step(step=number, **({"loss": 0.5, "total_tokens": 28} | fields))


def records(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def names(path: Path) -> list[str]:
    return [record["event"] for record in records(path)]


def steps(path: Path) -> list[int]:
    return [record["step"] for record in records(path) if record["event"] == "step"]


def test_the_records_of_a_whole_run(path: Path) -> None:
    log = RunLog(path, num_examples=64)
    log.handle(Init("tiny", config_values(GRPOConfig(group_size=8)), max_steps=2))
    log.handle(EpochStart(1, 1, 2))
    log.handle(PhaseChange(1, "generating"))
    log.handle(step(1, mean_reward=0.25, step_in_epoch=1, mean_advantage=0.5, metrics={"kl": 1.0}))
    log.handle(Log("info", "hello", "reward"))
    log.setting(2, "temperature", "0.7")
    log.handle(step(2, step_in_epoch=2, mean_advantage=0.0))
    log.handle(Eval(2, "held-out", 200, {"accuracy": 0.5}))
    log.handle(Checkpoint("/x/checkpoint-2", 2, "periodic"))
    log.handle(EpochEnd(1, 0.5, 0.25, 12.0))
    log.handle(Complete(2, 12.5, "completed"))
    log.close()
    found = records(path)
    assert [record["event"] for record in found] == [
        "training_start",
        "training_config",
        "epoch_start",
        "step",
        "log",
        "setting",
        "step",
        "eval",
        "checkpoint",
        "epoch",
        "training_complete",
    ]
    assert all("T" in record.pop("timestamp") for record in found)
    by_name = {record["event"]: record for record in reversed(found)}
    assert by_name["training_start"]["model"] == "tiny"
    assert by_name["training_config"]["num_examples"] == 64
    assert by_name["training_config"]["config"]["group_size"] == 8
    assert by_name["epoch_start"]["num_batches"] == 2
    assert by_name["step"] == {
        "event": "step",
        "step": 1,
        "loss": 0.5,
        "total_tokens": 28,
        "mean_reward": 0.25,
        "mean_advantage": 0.5,
        "step_in_epoch": 1,
        "metrics": {"kl": 1.0},
    }
    assert by_name["log"] == {
        "event": "log",
        "step": 1,
        "level": "info",
        "message": "hello",
        "source": "reward",
    }
    assert by_name["setting"]["value"] == "0.7"
    assert by_name["epoch"]["avg_advantage"] == 0.25
    assert by_name["epoch"]["total_tokens"] == 56
    assert by_name["training_complete"] == {
        "event": "training_complete",
        "step": 2,
        "final_step": 2,
        "total_time_ms": 12500,
        "status": "completed",
    }


def test_the_interval_holds_and_the_last_step_is_always_there(path: Path) -> None:
    log = RunLog(path, log_interval=4)
    for number in range(1, 7):
        log.handle(step(number))
    log.handle(Complete(6, 1.0, "stopped"))
    log.close()
    assert steps(path) == [4, 6]
    assert names(path)[-1] == "training_complete"


def test_the_planned_last_step_is_written_at_once(path: Path) -> None:
    log = RunLog(path, log_interval=4)
    log.handle(Init("tiny", config_values(GRPOConfig()), max_steps=5))
    for number in range(1, 6):
        log.handle(step(number))
    assert steps(path) == [4, 5]
    log.close()
    assert steps(path) == [4, 5]


def test_the_interval_can_change_while_training(path: Path) -> None:
    log = RunLog(path)
    log.handle(step(1))
    log.log_interval = 3
    for number in range(2, 7):
        log.handle(step(number))
    assert steps(path) == [1, 3, 6]
    log.close()


def test_a_failure_is_recorded_after_the_last_step(path: Path) -> None:
    log = RunLog(path, log_interval=10)
    log.handle(step(3))
    log.handle(Failed("out of memory", 1, hint="use a smaller batch_size"))
    log.close()
    last_step, failed = records(path)
    assert last_step["step"] == 3
    assert (failed["event"], failed["step"]) == ("failed", 3)
    assert (failed["error"], failed["hint"]) == ("out of memory", "use a smaller batch_size")


def test_W19_R05_numbers_that_are_not_finite_leave_valid_json(path: Path) -> None:
    log = RunLog(path)
    log.handle(step(1, loss=float("nan"), metrics={"kl": float("inf")}))
    log.handle(EpochEnd(1, float("nan"), None, 1.0))
    log.close()
    first, epoch = records(path)
    assert first["loss"] is None
    assert first["metrics"] == {"kl": None}
    assert epoch["avg_loss"] is None


def test_R07_text_without_utf8_form_costs_no_record(path: Path) -> None:
    log = RunLog(path)
    log.handle(Log("info", "a\ud83d\x00\u2028\n"))
    log.close()
    (record,) = records(path)
    assert record["message"] == "a\ufffd\x00\u2028\n"


@pytest.mark.parametrize("cut", [b'{"event":"step","st', b'{"event":"step","step":2}'])
def test_a_file_cut_by_a_crash_is_repaired(path: Path, cut: bytes) -> None:
    path.write_bytes(b'{"event":"step","step":1}\n' + cut)
    log = RunLog(path)
    log.handle(step(3))
    log.close()
    assert steps(path) == ([1, 2, 3] if cut.endswith(b"}") else [1, 3])


def test_a_file_that_holds_nothing_but_half_a_record_is_repaired(path: Path) -> None:
    path.write_bytes(b'{"event":"st')
    RunLog(path).close()
    assert path.read_bytes() == b""


def test_R17_after_resuming_each_step_stands_once(path: Path) -> None:
    log = RunLog(path)
    log.handle(EpochStart(1, 2, 6))
    for number in range(1, 7):
        log.handle(step(number))
    log.handle(EpochEnd(1, 0.5, 0.5, 1.0))
    log.handle(EpochStart(2, 2, 6))
    for number in range(7, 10):
        log.handle(step(number))
    log.close()

    again = RunLog(path)
    again.truncate_after(4)
    again.handle(Log("info", "resumed"))
    assert records(path)[-1]["step"] == 4
    for number in range(5, 10):
        again.handle(step(number))
    again.close()
    assert steps(path) == list(range(1, 10))
    assert names(path).count("epoch") == 0, "the end of the epoch will be written again"


def test_resuming_with_an_interval_does_not_keep_what_will_be_done_again(path: Path) -> None:
    log = RunLog(path, log_interval=10)
    for number in range(1, 19):
        log.handle(step(number))
    log.handle(EpochEnd(1, 0.5, 0.5, 1.0))
    log.handle(Log("info", "epoch over"))

    again = RunLog(path, log_interval=10)
    again.truncate_after(15)
    assert names(path) == ["step"]
    log.close()
    again.close()


def test_sums_of_an_epoch_are_left_out_when_part_of_it_was_not_seen(path: Path) -> None:
    log = RunLog(path)
    log.truncate_after(4)
    log.handle(EpochStart(1, 1, 6))
    log.handle(step(5, step_in_epoch=5))
    log.handle(EpochEnd(1, 0.5, 0.5, 1.0))
    log.close()
    assert "total_tokens" not in records(path)[-1]


def test_a_full_disk_is_said_once_and_leaves_whole_records(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[str] = []
    log = RunLog(path, on_problem=problems.append)
    log.handle(step(1))
    write = os.write
    full = False

    def write_until_full(fd: int, data: bytes) -> int:
        nonlocal full
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        full = True
        return write(fd, data[:10])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_until_full)
        log.handle(step(2))
        log.handle(step(3))
    log.handle(step(4))
    log.close()
    assert steps(path) == [1, 4]
    assert log.failed_writes == 2
    assert problems == [f"log file {path}: No space left on device; training goes on"]


def test_many_threads_write_whole_records(path: Path) -> None:
    log = RunLog(path)

    def talk() -> None:
        for _ in range(200):
            log.handle(Log("info", "x" * 500))

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert names(path) == ["log"] * 800


def test_flush_brings_everything_to_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog(path)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    log.handle(step(1))
    assert log.flush()
    assert synced == [path.stat().st_size]
    log.close()
    assert not log.flush()
