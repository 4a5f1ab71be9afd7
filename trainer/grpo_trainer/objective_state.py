"""What the objective remembers between steps, as a checkpoint keeps it.

The reference of the KL term is known again by a hash, and stored once it has moved; the adaptive
entropy bonus is two numbers; rollouts are stored while steps are due that train on them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from grpo_trainer.entropy_bonus import EntropyState
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.plan import PLAN_SETTINGS, PlannedStep, TrainingPlan
from grpo_trainer.rollout_window import RolloutWindow
from grpo_trainer.tensor_file import read_tree, write_tensors
from grpo_trainer.trees import leaves

REFERENCE_NAME = "reference.safetensors"
ROLLOUTS_NAME = "rollouts.json"


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


def write(folder: Path, learner: Learner, window: RolloutWindow | None) -> None:
    """The files that belong to it. Raises `OSError`."""
    reference = learner.reference
    if reference is not None and reference.was_synced:
        write_tensors(folder / REFERENCE_NAME, dict(leaves(reference.weights)))
    if window is not None:
        (folder / ROLLOUTS_NAME).write_bytes(msgspec.json.encode(window))


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


def read_window(
    folder: Path, step: int, plan: TrainingPlan, settings: Mapping[str, Any]
) -> RolloutWindow | None:
    """The rollouts that the steps after `step` train on; None when they sample anew.

    `settings` are those under which the checkpoint was written. Raises `CheckpointError` when
    others would train on other rollouts than it holds.
    """
    following = plan.step_after(step)
    _expect_same_plan(folder, following, plan, settings)
    if following.samples:
        return None
    path = folder / ROLLOUTS_NAME
    try:
        window = msgspec.json.decode(path.read_bytes(), type=RolloutWindow)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; use an earlier one") from error
    rows = [row for share in window.shares for batch in share.micro_batches for row in batch]
    if plan.config.kl_coef and any(row.ref_logprobs is None for row in rows):
        raise CheckpointError(
            f"resume={str(folder)!r}: kl_coef={plan.config.kl_coef:g}: the rollouts that step "
            f"{step + 1} trains on were sampled without a KL reference; resume without it, and "
            "set it once they are used up"
        )
    return window


def _expect_same_plan(
    folder: Path, following: PlannedStep, plan: TrainingPlan, settings: Mapping[str, Any]
) -> None:
    then = {name: settings[name] for name in PLAN_SETTINGS if name in settings}
    step = following.number - 1
    planned = TrainingPlan(plan.num_prompts, replace(plan.config, **then)).step_after(step)
    if planned == following or (planned.samples and following.samples):
        return
    changes = [
        f"{name} {value} → {getattr(plan.config, name)}"
        for name, value in then.items()
        if getattr(plan.config, name) != value
    ]
    raise CheckpointError(
        f"resume={str(folder)!r}: {', '.join(changes)}: step {step + 1} would train on other "
        "rollouts than the run had for it; resume with the settings of the run"
    )
