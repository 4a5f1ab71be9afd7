"""Puts a learner where an earlier run left off, and says what is not as it was then."""

from pathlib import Path

import msgspec

from grpo_protocol.config import GRPOConfig, live_keys
from grpo_protocol.config_input import ConfigError, validate_config
from grpo_protocol.messages import LogLevel
from grpo_trainer import checkpoint
from grpo_trainer.checkpoint import DatasetState, LiveSetting, TrainingState
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.learning_rate import learning_rate_of
from grpo_trainer.plan import TrainingPlan
from grpo_trainer.rollout_batch import RolloutBatch
from grpo_trainer.rollout_batch_file import read_rollout_batch
from grpo_trainer.run_conditions import conditions_of, differences

_DECIDE_TENSORS = (
    "fine_tune_type",
    "lora_rank",
    "lora_layers",
    "lora_keys",
    "optimizer_type",
)


class Resumption(msgspec.Struct):
    """How a run begins: from `state`, or afresh when there is none."""

    config: GRPOConfig
    """With the settings that people had changed while the earlier run trained."""
    state: TrainingState | None = None
    rollout_batch: RolloutBatch | None = None
    """Rollouts that the steps to come still train on."""
    restored: list[str] = []
    """Keys of those settings."""
    notes: list[tuple[LogLevel, str]] = []
    """Lines for the record, once it is open."""


def effective_config(config: GRPOConfig, folder: Path) -> GRPOConfig:
    """`config` with what it leaves open decided: the run's folder and name, the learning rate."""
    return msgspec.structs.replace(
        config,
        output_dir=str(folder),
        run_name=config.run_name or folder.name,
        learning_rate=learning_rate_of(config),
    )


def resume(
    folder: Path,
    config: GRPOConfig,
    dataset: DatasetState,
    learner: Learner,
    plan: TrainingPlan,
) -> Resumption:
    """Loads the checkpoint to go on from, if one is asked for and there is one.

    `config` is effective. Raises `CheckpointError` before anything in `folder` is touched.
    """
    wanted = config.resume_from_checkpoint
    if wanted is None:
        return Resumption(config)
    path: Path | None = Path(wanted).expanduser()
    if wanted == "latest":
        path = checkpoint.find_latest(folder)
    if path is None:
        note = f"no complete checkpoint in {folder}: starting at step 0"
        return Resumption(config, notes=[("info", note)])
    _expect_same_training(path, config)
    state = checkpoint.load_checkpoint(path, learner)
    if state.dataset != dataset:
        raise CheckpointError(
            f"resume={str(path)!r}: was written with another dataset ({state.dataset.size} rows, "
            f"now {dataset.size}, or other contents); resume with the data it was trained on"
        )
    written_with = state.conditions.settings if state.conditions else {}
    rollout_batch = read_rollout_batch(path, state.step, plan, written_with)
    note = f"resumed from {path} at {state.step} steps"
    result = Resumption(config, state, rollout_batch, notes=[("info", note)])
    _restore_settings(result, state)
    _compare_conditions(result, state)
    return result


def _expect_same_training(path: Path, config: GRPOConfig) -> None:
    """Names the setting where other tensors than those of the checkpoint would be trained."""
    state = checkpoint.peek_state(path)
    if state is None or state.conditions is None:
        return
    written_with = state.conditions.settings
    for key in _DECIDE_TENSORS:
        then, now = written_with.get(key, getattr(config, key)), getattr(config, key)
        if then != now:
            adapters = written_with.get("adapter_path")
            remedy = f"{key}={then}"
            if adapters and not config.adapter_path:
                remedy = f"adapter_path={adapters}"
            raise CheckpointError(
                f"resume={str(path)!r}: was trained with {key}={then}, not {now}; "
                f"resume with {remedy}"
            )


def live_settings(start: GRPOConfig, now: GRPOConfig) -> dict[str, LiveSetting]:
    """The live settings that were changed since the start."""
    pairs = {key: LiveSetting(getattr(start, key), getattr(now, key)) for key in live_keys()}
    return {key: setting for key, setting in pairs.items() if setting.start != setting.value}


def set_aside_later(folder: Path, state: TrainingState) -> str | None:
    """Makes what this run saved after `state.step` unfit for `latest`; a line about it.

    Steps that are about to be taken again would otherwise compete with those of another past.
    Raises `CheckpointError`.
    """
    renamed = []
    for path in checkpoint.resumable_folders(folder):
        later = checkpoint.peek_state(path)
        if later is None or later.run_id != state.run_id or later.step <= state.step:
            continue
        target = _unused(folder / f"superseded-{path.name.removeprefix('.').removesuffix('.old')}")
        try:
            path.rename(target)
        except OSError as error:
            raise CheckpointError(
                f"{path}: is of a later step than {state.step} and cannot be set aside: "
                f"{error.strerror}; move it away"
            ) from error
        renamed.append(target.name)
    if not renamed:
        return None
    return f"checkpoints after step {state.step} are kept as {', '.join(sorted(renamed))}"


def _unused(path: Path) -> Path:
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _restore_settings(result: Resumption, state: TrainingState) -> None:
    """A setting that the command gives as at the start was not meant to undo the change."""
    config = result.config
    for key, setting in state.live_settings.items():
        if key not in live_keys() or getattr(result.config, key) != setting.start:
            continue
        changed = msgspec.structs.replace(config, **{key: setting.value})
        try:
            config = validate_config(changed)
        except ConfigError as error:
            result.notes.append(("warn", f"changed setting of the run is left out: {error}"))
        else:
            result.restored.append(key)
    result.config = config
    if result.restored:
        values = ", ".join(f"{key}={getattr(config, key)}" for key in result.restored)
        note = f"settings that were changed while training hold again: {values}; SET changes them"
        result.notes.append(("info", note))


def _compare_conditions(result: Resumption, state: TrainingState) -> None:
    if state.conditions is None:
        return
    changes = differences(state.conditions, conditions_of(result.config))
    if changes:
        note = f"not as before the resume: {', '.join(changes)}; steps may differ from those of "
        result.notes.append(("warn", f"{note}a run that was left alone"))
