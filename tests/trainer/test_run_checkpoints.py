"""Which checkpoints a run writes, which it keeps, and what happens when one cannot be written."""

from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import Checkpoint
from grpo_trainer.errors import TrainingError
from grpo_trainer.run_saving import RunSaver
from library_runs import Library


def test_checkpoints_come_at_the_interval_and_only_the_newest_stay(tmp_path: Path) -> None:
    library = Library(tmp_path, max_steps=7, save_interval=2, max_checkpoints=2)
    library.train()
    told = [(e.step, e.kind, Path(e.path).name) for e in library.all(Checkpoint)]
    assert told == [
        (2, "periodic", "checkpoint-2"),
        (4, "periodic", "checkpoint-4"),
        (6, "periodic", "checkpoint-6"),
        (7, "final", "final"),
    ]
    folders = {path.name for path in library.folder.iterdir() if path.is_dir()}
    assert folders == {"checkpoint-4", "checkpoint-6", "final"}


def test_an_interval_of_zero_is_off(tmp_path: Path) -> None:
    library = Library(tmp_path, save_interval=0)
    library.train()
    assert [e.kind for e in library.all(Checkpoint)] == ["final"]


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, save_interval=1)
    save = RunSaver.save

    def fail_at_2(self: Any, kind: Any, name: str | None = None) -> Path:
        if self._describe().step == 2:
            raise OSError("disk full")
        return save(self, kind, name)

    monkeypatch.setattr(RunSaver, "save", fail_at_2)
    assert library.train().status == "completed"
    assert any("step 2 could not be saved: disk full" in text for text in library.logs("error"))


def test_a_final_checkpoint_that_cannot_be_written_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path)

    def fail(self: Any, kind: Any, name: str | None = None) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(RunSaver, "save", fail)
    with pytest.raises(TrainingError, match="checkpoint cannot be saved: disk full"):
        library.train()
