"""Checkpoints: what they hold, written whole or not at all, and read back strictly.

A folder appears under its name by one rename; its manifest with the size and hash of every file is
written last, so a folder without a matching manifest is never used.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from grpo_trainer import objective_state, weight_files
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.objective_state import ObjectiveState
from grpo_trainer.rollout_batch import RolloutBatch
from grpo_trainer.rollout_batch_file import write_rollout_batch
from grpo_trainer.run_conditions import RunConditions
from grpo_trainer.tensor_file import read_tree, write_tensors
from grpo_trainer.trees import leaves

STATE_NAME = "training_state.json"
MANIFEST_NAME = "manifest.json"
OPTIMIZER_NAME = "optimizer_state.safetensors"
_STEP_FOLDER = re.compile(r"checkpoint-(\d+)")
# A crash while a folder is replaced may leave nothing but the copy that was moved aside.
_RESUMABLE = re.compile(r"(?P<aside>\.)?((checkpoint|emergency)-\d+|final)(?(aside)\.old)")


class DatasetState(msgspec.Struct, frozen=True, rename="camel"):
    """Which dataset the run reads."""

    size: int
    content_hash: str


class LiveSetting(msgspec.Struct, frozen=True):
    """A setting that was changed while training."""

    start: Any
    """As the command gave it."""
    value: Any


class TrainingState(msgspec.Struct, frozen=True, rename="camel"):
    """Where a run stands; the keys are the reference's, with ours added."""

    step: int
    epoch: int
    timestamp: str
    dataset: DatasetState
    has_optimizer_state: bool
    run_id: str
    seed: int
    num_tokens: int = 0
    """Prompt and completion tokens of all steps."""
    evaluated_step: int | None = None
    """The step of the last evaluation that was recorded."""
    nan_gradients: int = 0
    """Steps whose loss or gradient was not finite."""
    live_settings: dict[str, LiveSetting] = {}
    objective: ObjectiveState = ObjectiveState()
    conditions: RunConditions | None = None


class _FileEntry(msgspec.Struct, frozen=True):
    size: int
    sha256: str


def save_checkpoint(
    folder: Path, learner: Learner, state: TrainingState, rollouts: RolloutBatch | None = None
) -> None:
    """Writes `folder` whole, replacing one of that name, or raises `OSError` and leaves it.

    `rollouts` are those that the steps to come still train on.
    """
    building = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        weight_files.write(building, learner.policy)
        for name, content in weight_files.descriptions(learner.policy).items():
            _write_json(building / name, content)
        if state.has_optimizer_state:
            write_tensors(building / OPTIMIZER_NAME, dict(leaves(learner.optimizer.state)))
        objective_state.write(building, learner)
        if rollouts is not None:
            write_rollout_batch(building, rollouts)
        _write_json(building / STATE_NAME, state)
        _write_manifest(building)
        _put_in_place(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def load_checkpoint(folder: Path, learner: Learner) -> TrainingState:
    """Puts weights and optimizer state of `folder` into `learner`. Raises `CheckpointError`."""
    state = read_state(folder)
    learner.policy.adopt(weight_files.read(folder, learner.policy))
    if state.has_optimizer_state:
        path = folder / OPTIMIZER_NAME
        learner.optimizer.state = read_tree(path, like=learner.optimizer.state)
        mx.eval(learner.optimizer.state)
        learner.updates = int(learner.optimizer.step.item())
    objective_state.restore(folder, learner, state.objective)
    return state


def read_state(folder: Path) -> TrainingState:
    """The state of a complete checkpoint. Raises `CheckpointError` naming what is wrong."""
    if not folder.is_dir():
        raise CheckpointError(f"resume={str(folder)!r}: no such folder; check the path")
    if not (folder / STATE_NAME).is_file():
        raise CheckpointError(
            f"resume={str(folder)!r}: holds no {STATE_NAME}; to start from it use --model"
        )
    try:
        _check_manifest(folder)
        return msgspec.json.decode((folder / STATE_NAME).read_bytes(), type=TrainingState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"resume={str(folder)!r}: cannot be read: {error}") from error


def peek_state(folder: Path) -> TrainingState | None:
    """The state of a checkpoint whose other files are not looked at; `None` without one."""
    try:
        return msgspec.json.decode((folder / STATE_NAME).read_bytes(), type=TrainingState)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def resumable_folders(run_folder: Path) -> list[Path]:
    """The folders that `find_latest` chooses from, complete or not."""
    return [path for path in run_folder.glob("*/") if _RESUMABLE.fullmatch(path.name)]


def find_latest(run_folder: Path) -> Path | None:
    """The complete checkpoint with the most steps, of any kind; `None` without any."""
    peeked = [(peek_state(path), path) for path in resumable_folders(run_folder)]
    candidates = [(state.step, path) for state, path in peeked if state is not None]
    for _, path in sorted(candidates, reverse=True):
        try:
            read_state(path)
        except CheckpointError:
            continue
        return path
    return None


def steps_saved_by(run_folder: Path, run_id: str) -> list[int]:
    """Steps of the `checkpoint-N` that the run `run_id` wrote, in order."""
    paths = [path for path in run_folder.glob("checkpoint-*/") if _STEP_FOLDER.fullmatch(path.name)]
    states = [peek_state(path) for path in paths]
    return sorted(state.step for state in states if state is not None and state.run_id == run_id)


def prune(run_folder: Path, keep: int, saved_steps: list[int]) -> list[Path]:
    """Removes the oldest `checkpoint-N` of `saved_steps` beyond `keep`; 0 keeps all.

    Folders of other runs, which may have higher numbers, are not in `saved_steps` and stay.
    """
    surplus = saved_steps[:-keep] if keep else []
    folders = [run_folder / f"checkpoint-{step}" for step in surplus]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    del saved_steps[: len(surplus)]
    return folders


def _write_json(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _write_manifest(folder: Path) -> None:
    entries = {path.name: _entry(path) for path in sorted(folder.iterdir())}
    for path in folder.iterdir():
        _sync(path)
    _write_json(folder / MANIFEST_NAME, entries)
    _sync(folder / MANIFEST_NAME)
    _sync(folder)


def _check_manifest(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise CheckpointError(f"resume={str(folder)!r}: is incomplete; resume from an earlier one")
    entries = msgspec.json.decode(path.read_bytes(), type=dict[str, _FileEntry])
    for name, entry in entries.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != entry.size or _entry(file) != entry:
            raise CheckpointError(
                f"resume={str(folder)!r}: {name} is missing or altered; use an earlier one"
            )


def _entry(path: Path) -> _FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return _FileEntry(path.stat().st_size, digest.hexdigest())


def _put_in_place(building: Path, folder: Path) -> None:
    """A name that exists is moved aside first, so that some whole folder exists at every moment."""
    aside = folder.with_name(f".{folder.name}.old")
    if replaces := folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    try:
        building.rename(folder)
    except OSError:
        if replaces:
            aside.rename(folder)
        raise
    _sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
