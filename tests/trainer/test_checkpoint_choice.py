"""Which checkpoint a run goes on from, and which ones make room."""

from pathlib import Path
from typing import Any

import pytest

from checkpoints import save_state
from grpo_trainer import checkpoint
from grpo_trainer.checkpoint import find_latest, prune, steps_saved_by


def test_R13_the_latest_is_the_one_with_most_steps(tmp_path: Path) -> None:
    assert find_latest(tmp_path) is None
    for step in (9, 10, 100):
        save_state(tmp_path / f"checkpoint-{step}", step)
    assert find_latest(tmp_path) == tmp_path / "checkpoint-100"
    save_state(tmp_path / "final", 120)
    assert find_latest(tmp_path) == tmp_path / "final"
    save_state(tmp_path / "emergency-130", 130)
    assert find_latest(tmp_path) == tmp_path / "emergency-130"
    save_state(tmp_path / "debug-140", 140)
    (tmp_path / "checkpoint-150").mkdir()
    (tmp_path / ".checkpoint-160.tmp").mkdir()
    assert find_latest(tmp_path) == tmp_path / "emergency-130"


def test_choosing_hashes_no_more_than_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        save_state(tmp_path / f"checkpoint-{step}", step)
    (tmp_path / "checkpoint-3" / checkpoint.MANIFEST_NAME).unlink()
    hashed: set[str] = set()
    entry = checkpoint._entry

    def listen(path: Path) -> Any:
        hashed.add(path.parent.name)
        return entry(path)

    monkeypatch.setattr(checkpoint, "_entry", listen)
    assert find_latest(tmp_path) == tmp_path / "checkpoint-2"
    assert steps_saved_by(tmp_path, "run-1") == [1, 2, 3]
    assert hashed == {"checkpoint-2"}


def test_R11_a_crash_while_a_name_is_replaced_leaves_one_to_resume_from(tmp_path: Path) -> None:
    save_state(tmp_path / ".final.old", 8)
    assert find_latest(tmp_path) == tmp_path / ".final.old"
    save_state(tmp_path / "final", 8)
    assert find_latest(tmp_path) == tmp_path / "final"


def test_W12_retention_looks_at_the_run_s_own_history(tmp_path: Path) -> None:
    for step, run_id in ((2, "run-1"), (4, "run-1"), (6, "run-1"), (50, "older"), (60, "older")):
        save_state(tmp_path / f"checkpoint-{step}", step, run_id)
    saved_steps = steps_saved_by(tmp_path, "run-1")
    assert saved_steps == [2, 4, 6]
    removed = prune(tmp_path, 2, saved_steps)
    assert removed == [tmp_path / "checkpoint-2"]
    assert saved_steps == [4, 6]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"checkpoint-4", "checkpoint-6", "checkpoint-50", "checkpoint-60"}


def test_no_limit_keeps_all(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_state(tmp_path / f"checkpoint-{step}", step)
    assert prune(tmp_path, 0, [1, 2, 3]) == []
    assert len(list(tmp_path.iterdir())) == 3
