"""How the events of the training loop change the run state."""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias, assert_never

import msgspec
from msgspec import UNSET

from grpo_protocol.config import ConfigKey, config_keys
from grpo_protocol.messages import (
    PROTOCOL_VERSION,
    Checkpoint,
    DatabasePath,
    EpochEnd,
    EpochStart,
    Eval,
    Generation,
    Hello,
    Init,
    PhaseChange,
    ResumeState,
    Status,
    Step,
)
from grpo_tui.sanitize import clean_line
from grpo_tui.state import metric_names
from grpo_tui.state.history import add_evaluation, resume, rewind, series_named, start_over
from grpo_tui.state.run_model import (
    ConfigEntry,
    Evaluation,
    Mark,
    PhaseState,
    RunState,
    SavedCheckpoint,
)

_PATH_LIMIT: Final = 4096
_VALUE_LIMIT: Final = 1000
_MAX_COUNT: Final = 2**40
"""Larger steps and token counts are nonsense, and would not fit a chart."""

SetupEvent: TypeAlias = Hello | Status | DatabasePath | ResumeState | Init
LoopEvent: TypeAlias = EpochStart | PhaseChange | Step | Generation | Checkpoint | Eval | EpochEnd


def apply_setup(state: RunState, event: SetupEvent, now: float) -> None:
    """Takes what a trainer tells before its first step, in any order."""
    match event:
        case Hello():
            _greet(state, event, now)
        case Status():
            state.loading_message = clean_line(event.message) or clean_line(event.phase)
            state.logs.add(now, "info", "trainer", event.message)
        case DatabasePath():
            state.database_path = clean_line(event.path, _PATH_LIMIT)
            state.run_id = clean_line(event.run_id)
            state.run_name = None if event.run_name is None else clean_line(event.run_name)
        case ResumeState():
            resume(state, event, now)
        case Init():
            _init(state, event, now)
        case _:
            assert_never(event)


def apply_loop(state: RunState, event: LoopEvent, now: float) -> None:
    """Takes what a trainer tells while it trains."""
    match event:
        case EpochStart():
            state.progress.start_epoch(event.epoch, event.total_epochs, event.num_batches)
            _loop_runs(state, now)
            state.marks.append(Mark(state.progress.step, "epoch", f"epoch {event.epoch}"))
        case PhaseChange():
            state.loop_started = True
            state.phase = PhaseState(event.step, event.phase, event.done, event.total)
        case Step():
            _step(state, event, now)
        case Generation():
            step = state.progress.step if event.step is None else event.step
            if 0 <= event.index <= _MAX_COUNT and 0 <= step <= _MAX_COUNT:
                state.samples.add(event, step, state.group_size)
        case Checkpoint():
            _checkpoint(state, event, now)
        case Eval():
            _evaluation(state, event, now)
        case EpochEnd():
            state.phase = None
            state.logs.add(now, "info", "trainer", _epoch_summary(event))
        case _:
            assert_never(event)


def _greet(state: RunState, event: Hello, now: float) -> None:
    state.hello = msgspec.structs.replace(
        event,
        trainer_version=clean_line(event.trainer_version),
        capabilities=[clean_line(word) for word in event.capabilities],
    )
    if event.protocol_version > PROTOCOL_VERSION:
        state.logs.add(
            now,
            "warn",
            "app",
            f"the trainer speaks protocol {event.protocol_version}, this dashboard "
            f"{PROTOCOL_VERSION}: what is new is not shown; upgrade grpo-tui",
        )


def _init(state: RunState, event: Init, now: float) -> None:
    if not state.resumed:
        start_over(state)
    state.model = clean_line(event.model)
    state.config = _config_entries(event.config)
    if isinstance(folder := event.config.output_dir, str):
        state.output_dir = clean_line(folder, _PATH_LIMIT)
    size = event.config.group_size
    state.group_size = size if isinstance(size, int) and size > 0 else None
    state.progress.max_steps = event.max_steps
    _loop_runs(state, now)


def _config_entries(config: Any) -> list[ConfigEntry]:
    entries = []
    if (kind := config.training_type) is not UNSET:
        entries.append(ConfigEntry("Run", "training_type", clean_line(str(kind)), True))
    for key in config_keys():
        value = getattr(config, key.name)
        if value is not UNSET:
            entries += _entries_of(key, value)
    return entries


def _entries_of(key: ConfigKey, value: Any) -> Iterable[ConfigEntry]:
    if not isinstance(value, msgspec.Struct):
        is_default = bool(value == key.default)
        yield ConfigEntry(key.group, key.name, _value_text(value), is_default, key.live)
        return
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        is_default = bool(inner == getattr(key.default, name, None))
        yield ConfigEntry(key.group, f"{key.name}.{name}", _value_text(inner), is_default)


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return clean_line(", ".join(map(_value_text, value)), _VALUE_LIMIT) or "none"
    return clean_line(str(value), _VALUE_LIMIT)


def _loop_runs(state: RunState, now: float) -> None:
    state.loop_started = True
    state.phase = None
    state.times.loop_ready(now)


def _step(state: RunState, event: Step, now: float) -> None:
    if not (0 <= event.step <= _MAX_COUNT and 0 <= event.total_tokens <= _MAX_COUNT):
        state.faults.malformed += 1
        message = f"step {event.step} with {event.total_tokens} tokens: out of range, ignored"
        state.logs.add(now, "warn", "app", message)
        return
    rewind(state, event.step)
    state.loop_started = True
    state.phase = None
    state.totals.tokens += event.total_tokens
    values = metric_names.step_values(event)
    for name in metric_names.unknown_fields(event):
        if name in state.series:
            values[name] = None
    for name, value in values.items():
        if (series := series_named(state, clean_line(name))) is not None:
            series.append(event.step, value, now, state.totals.tokens)
    state.progress.finish_step(event.step, event.epoch, event.step_in_epoch)
    state.times.step_done(now)
    reward, best = event.mean_reward, state.totals.best_reward
    if reward is not None and (best is None or reward > best):
        state.totals.best_reward, state.totals.best_reward_step = reward, event.step


def _checkpoint(state: RunState, event: Checkpoint, now: float) -> None:
    path = clean_line(event.path, _PATH_LIMIT)
    state.phase = None
    state.last_checkpoint = SavedCheckpoint(path, event.step, event.kind, now)
    state.marks.append(Mark(event.step, "checkpoint", path))
    state.logs.add(now, "info", "trainer", f"checkpoint of step {event.step}: {path}")
    if event.kind in {None, "manual"}:
        state.commands.complete("SAVE_CHECKPOINT", now, path)


def _evaluation(state: RunState, event: Eval, now: float) -> None:
    name = clean_line(event.name)
    metrics = {clean_line(key.removeprefix("eval/")): value for key, value in event.metrics.items()}
    state.phase = None
    add_evaluation(state, Evaluation(event.step, name, event.num_prompts, metrics))
    for key, value in metrics.items():
        series = series_named(state, f"eval/{name}/{key}")
        if series is not None and 0 <= event.step <= _MAX_COUNT:
            series.append(event.step, value, now, state.totals.tokens)
    told = ", ".join(f"{key} {_number(value)}" for key, value in metrics.items())
    state.logs.add(now, "info", "trainer", f"evaluation {name} at step {event.step}: {told}")


def _epoch_summary(event: EpochEnd) -> str:
    return (
        f"epoch {event.epoch} ended: mean reward {_number(event.avg_reward)}, "
        f"mean loss {_number(event.avg_loss)}, {event.epoch_time_secs:.1f} s"
    )


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
