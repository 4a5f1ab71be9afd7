"""A run that fails: its record says why, is closed, and keeps the first error."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import Failed, Log
from grpo_trainer import run_opening
from grpo_trainer.learner import Learner
from grpo_trainer.output.recorder import Recorder
from grpo_trainer.output.run_log import RunLog
from grpo_trainer.step_report import describe_step
from library_runs import ROWS, Library


def records(folder: Path) -> list[dict[str, Any]]:
    (log,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "outputs.db") as db:
        return db.execute(sql).fetchall()


def fail_in_training(library: Library, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    update = library.trainer.learner.update

    def failing(micro_batches: Any, config: Any, number: int, **options: Any) -> Any:
        if number == step:
            raise MemoryError("no room")
        return update(micro_batches, config, number, **options)

    monkeypatch.setattr(library.trainer.learner, "update", failing)


def test_the_record_says_why_the_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path)
    fail_in_training(library, 2, monkeypatch)
    with pytest.raises(MemoryError):
        library.train()
    *_, trace, failed = records(library.folder)
    assert (failed["event"], failed["error"]) == ("failed", "MemoryError: no room")
    assert "in failing" in trace["message"]
    texts = [text for (text,) in query(library.folder, "SELECT message FROM logs ORDER BY id")]
    assert texts[-1] == "failed: MemoryError: no room"
    assert "in failing" in texts[-2]
    assert len(library.all(Failed)) == 1


def test_weights_of_a_half_done_step_are_not_saved_as_those_of_the_step_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(planned: Any, *others: Any) -> Any:
        if planned.number == 2:
            raise MemoryError("after the update")
        return describe_step(planned, *others)

    monkeypatch.setattr("grpo_trainer.trainer.describe_step", failing)
    library = Library(tmp_path)
    with pytest.raises(MemoryError):
        library.train()
    assert not list(library.folder.glob("emergency-*"))
    assert "step 2 was left half done: not saved" in library.logs("warn")


def test_a_failing_emergency_save_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path)
    fail_in_training(library, 2, monkeypatch)

    def fail(self: Any) -> bool:
        raise RuntimeError("[metal] out of memory")

    monkeypatch.setattr(Learner, "is_finite", fail)
    with pytest.raises(MemoryError):
        library.train()
    assert query(library.folder, "SELECT status FROM training_runs") == [("crashed",)]
    assert any("[metal] out of memory" in text for text in library.logs("error"))


@pytest.mark.parametrize("place", ["Run", "_announce"])
def test_a_failure_between_opening_and_training_closes_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(run_opening, place, fail)
    library = Library(tmp_path)
    with pytest.raises(RuntimeError, match="broken"):
        library.train()
    assert query(library.folder, "SELECT status FROM training_runs") == [("crashed",)]
    assert records(library.folder)[-1]["event"] == "failed"


def test_a_log_file_that_cannot_be_opened_costs_no_recorded_row(tmp_path: Path) -> None:
    Library(tmp_path, save_interval=2).train()
    log = next((tmp_path / "run").glob("*.jsonl"))
    log.unlink()
    log.mkdir()
    again = Library(tmp_path, resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    with pytest.raises(Exception, match="log file"):
        again.train()
    assert query(again.folder, "SELECT status, total_steps FROM training_runs") == [
        ("completed", 3)
    ]
    assert query(again.folder, "SELECT count(*) FROM training_steps") == [(3,)]


@pytest.mark.parametrize(("kind", "method"), [(Recorder, "commit"), (RunLog, "flush")])
def test_a_checkpoint_whose_record_is_not_on_the_disk_is_saved_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, method: str
) -> None:
    monkeypatch.setattr(kind, method, lambda self, *_: False)
    library = Library(tmp_path)
    library.train(ROWS)
    (warning,) = [text for text in library.logs("warn") if "without its record" in text]
    assert warning.startswith("final is saved without its record")
    assert all(isinstance(event, Log) for event in library.all(Log))
