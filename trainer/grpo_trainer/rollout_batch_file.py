"""The rollouts in a checkpoint, kept while steps are due that train on them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from grpo_trainer.errors import CheckpointError
from grpo_trainer.plan import PLAN_SETTINGS, PlannedStep, TrainingPlan
from grpo_trainer.rollout_batch import RolloutBatch

ROLLOUTS_NAME = "rollouts.json"
SCORING_SETTINGS = (
    "dtype",
    "repetition_penalty",
    "repetition_context_size",
    "presence_penalty",
    "presence_context_size",
    "frequency_penalty",
    "frequency_context_size",
)
"""Config keys that change the log-probs of rollouts which are used again."""


def write_rollout_batch(folder: Path, batch: RolloutBatch) -> None:
    """Writes it into a checkpoint's folder. Raises `OSError`."""
    (folder / ROLLOUTS_NAME).write_bytes(msgspec.json.encode(batch))


def read_rollout_batch(
    folder: Path, step: int, plan: TrainingPlan, settings: Mapping[str, Any]
) -> RolloutBatch | None:
    """The rollouts that the steps after `step` train on; None when they sample anew.

    `settings` are those under which the checkpoint was written. Raises `CheckpointError` when
    others would train on other rollouts than it holds.
    """
    following = plan.step_after(step)
    _expect_same_plan(folder, following, plan, settings)
    if following.samples:
        return None
    _expect_same_scores(folder, step, plan, settings)
    path = folder / ROLLOUTS_NAME
    try:
        batch = msgspec.json.decode(path.read_bytes(), type=RolloutBatch)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; use an earlier one") from error
    micro_batches = [rows for part in batch.mini_batches for rows in part.micro_batches]
    if plan.config.kl_coef and any(
        row.ref_logprobs is None for rows in micro_batches for row in rows
    ):
        raise CheckpointError(
            f"resume={str(folder)!r}: kl_coef={plan.config.kl_coef:g}: the rollouts that step "
            f"{step + 1} trains on were sampled without a KL reference; resume without it, and "
            "set it once they are used up"
        )
    return batch


def _expect_same_scores(
    folder: Path, step: int, plan: TrainingPlan, settings: Mapping[str, Any]
) -> None:
    """The log-probs that the rollouts carry are those of one distribution."""
    changes = [
        f"{name} {settings[name]} → {getattr(plan.config, name)}"
        for name in SCORING_SETTINGS
        if name in settings and settings[name] != getattr(plan.config, name)
    ]
    if changes:
        raise CheckpointError(
            f"resume={str(folder)!r}: {', '.join(changes)}: step {step + 1} trains on rollouts "
            "whose probabilities were computed without that; resume with the settings of the run"
        )


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
