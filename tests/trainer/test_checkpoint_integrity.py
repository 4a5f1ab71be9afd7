"""Checkpoints are whole or not there: what survives a failure, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints import state_of, trained
from grpo_trainer import checkpoint
from grpo_trainer.checkpoint import find_latest, load_checkpoint, read_state, save_checkpoint
from grpo_trainer.errors import CheckpointError
from grpo_trainer.tensor_file import write_tensors
from learners import are_identical, copy_of, make_learner
from tiny_model import tiny_model


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of adapters after two steps."""
    learner = trained("lora")
    save_checkpoint(tmp_path / "checkpoint-2", learner, state_of(learner, 2))
    return tmp_path / "checkpoint-2"


# --- whole or not at all


@pytest.mark.parametrize("at", ["weights", "optimizer", "manifest", "rename"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new name", "same name"])
def test_W11_R11_a_failure_in_the_middle_leaves_the_older_one_alone(
    saved: Path, monkeypatch: pytest.MonkeyPatch, at: str, is_new: bool
) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    learner = trained("lora", steps=3)
    break_at(at, monkeypatch)
    target = saved.with_name("checkpoint-3") if is_new else saved
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(target, learner, state_of(learner, 3))
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert read_state(saved).step == 2


def break_at(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    def fail_for_optimizer(path: Path, *args: Any, **options: Any) -> None:
        if path.name == checkpoint.OPTIMIZER_NAME:
            fail()
        write_tensors(path, *args, **options)

    match place:
        case "weights":
            monkeypatch.setattr(checkpoint, "write_tensors", fail)
        case "optimizer":
            monkeypatch.setattr(checkpoint, "write_tensors", fail_for_optimizer)
        case "manifest":
            monkeypatch.setattr(checkpoint, "_write_manifest", fail)
        case "rename":
            rename = Path.rename

            def fail_for_new(self: Path, target: Path) -> Path:
                if self.name.endswith(".tmp"):
                    fail()
                return rename(self, target)

            monkeypatch.setattr(Path, "rename", fail_for_new)


def test_a_name_that_exists_is_replaced(saved: Path) -> None:
    learner = trained("lora", steps=3)
    save_checkpoint(saved, learner, state_of(learner, 3))
    assert read_state(saved).step == 3
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


# --- what is refused


def cut(folder: Path) -> None:
    path = folder / "adapters.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(folder: Path) -> None:
    path = folder / "adapters.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def remove_optimizer(folder: Path) -> None:
    (folder / checkpoint.OPTIMIZER_NAME).unlink()


def remove_manifest(folder: Path) -> None:
    (folder / checkpoint.MANIFEST_NAME).unlink()


def break_manifest(folder: Path) -> None:
    (folder / checkpoint.MANIFEST_NAME).write_text("{")


def alter_state(folder: Path) -> None:
    path = folder / checkpoint.STATE_NAME
    path.write_text(path.read_text().replace('"step": 2', '"step": 9'))


@pytest.mark.parametrize(
    "damage",
    [cut, flip_a_bit, remove_optimizer, remove_manifest, break_manifest, alter_state],
)
def test_W11_a_checkpoint_that_is_not_whole_is_refused(
    saved: Path, damage: Callable[[Path], None]
) -> None:
    damage(saved)
    learner = make_learner()
    weights = copy_of(learner.policy.weights)
    with pytest.raises(CheckpointError, match="resume=") as caught:
        load_checkpoint(saved, learner)
    assert "\n" not in str(caught.value)
    assert are_identical(copy_of(learner.policy.weights), weights)
    assert find_latest(saved.parent) is None


def test_what_is_no_checkpoint_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder; check the path"):
        read_state(tmp_path / "checkpoint-7")
    with pytest.raises(CheckpointError, match="to start from it use --model"):
        read_state(tiny_model())
