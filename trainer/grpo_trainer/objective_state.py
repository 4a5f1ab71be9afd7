"""What the objective remembers between steps, as a checkpoint keeps it.

The reference of the KL term is known again by a hash, and stored once it has moved; the adaptive
entropy bonus is two numbers.
"""

from pathlib import Path

import msgspec

from grpo_trainer.entropy_bonus import EntropyState
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.tensor_file import read_tree, write_tensors
from grpo_trainer.trees import leaves

REFERENCE_NAME = "reference.safetensors"


class ObjectiveState(msgspec.Struct, frozen=True, rename="camel"):
    """The part that is in `training_state.json`."""

    reference: str | None = None
    """Hash of the reference's weights; None without a KL term."""
    entropy: EntropyState | None = None
    """Of the adaptive entropy bonus."""


def state_of(learner: Learner, *, adaptive_entropy: bool) -> ObjectiveState:
    """The state of `learner` now."""
    reference = learner.reference
    return ObjectiveState(
        reference=reference.fingerprint if reference is not None else None,
        entropy=learner.entropy_bonus.state if adaptive_entropy else None,
    )


def write(folder: Path, learner: Learner) -> None:
    """The file that belongs to it, if there is one. Raises `OSError`."""
    reference = learner.reference
    if reference is not None and reference.was_synced:
        write_tensors(folder / REFERENCE_NAME, dict(leaves(reference.weights)))


def restore(folder: Path, learner: Learner, state: ObjectiveState) -> None:
    """Puts it back into `learner`. Raises `CheckpointError` when the reference is another."""
    if state.entropy is not None:
        learner.entropy_bonus.state = state.entropy
    reference = learner.reference
    if reference is None or state.reference is None:
        return
    path = folder / REFERENCE_NAME
    if path.is_file():
        reference.restore(read_tree(path, like=reference.weights))
    if reference.fingerprint != state.reference:
        raise CheckpointError(
            f"resume={str(folder)!r}: the KL reference is the model that the run started from, and "
            "this is another; resume with the model, dtype, seed and adapter settings of the "
            "first start"
        )
