"""The charts' past: what a resumed trainer or a database tells of it, and what is taken back."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from grpo_protocol.messages import ResumeState
from grpo_tui.state import metric_names
from grpo_tui.state.run_model import Mark, RunState
from grpo_tui.state.sanitize import clean_line
from grpo_tui.state.series import Point, Series

_MAX_SERIES: Final = 500
"""Metric names come from outside: a trainer that invents new ones for ever must not eat memory."""


class StoredStep(NamedTuple):
    """One row of a database's `training_steps`, with its `metrics` map merged into `columns`."""

    step: int
    created_at_ms: int
    total_tokens: int
    columns: Mapping[str, float | None]


def restore_steps(state: RunState, rows: Iterable[tuple[int, int, int, Any]]) -> None:
    """Fills the charts with recorded steps; what the stream has told stays as it is.

    Rows are as in `StoredStep`, oldest first. Totals follow, unless the stream had told its own.
    """
    state.version += 1
    points: dict[str, list[Point]] = {}
    tokens = 0
    for step, created_at_ms, total_tokens, columns in rows:
        tokens += total_tokens
        for name, value in metric_names.stored_values(columns).items():
            point = Point(step, value, created_at_ms / 1000, tokens)
            points.setdefault(clean_line(name), []).append(point)
    _merge(state, points)
    state.totals.tokens = max(state.totals.tokens, tokens)
    _note_best(state)


def resume(state: RunState, event: ResumeState, now: float) -> None:
    """Takes the position, the newest history and the totals of a resumed run."""
    rewind(state, event.step + 1)
    progress = state.progress
    progress.step = event.step
    progress.epoch, progress.total_epochs = event.epoch, event.total_epochs
    progress.step_in_epoch = event.step_in_epoch
    progress.num_batches = event.total_steps_in_epoch
    points: dict[str, list[Point]] = {}
    for item in event.metrics_history:
        if 0 <= item.step <= event.step:
            for name, value in metric_names.history_values(item).items():
                points.setdefault(name, []).append(Point(item.step, value, now))
    _merge(state, points)
    state.totals.tokens = event.aggregates.total_tokens or state.totals.tokens
    best = event.aggregates.best_reward
    _note_best(state)
    if best is not None and best > (state.totals.best_reward or float("-inf")):
        state.totals.best_reward, state.totals.best_reward_step = best, None
    state.marks.append(Mark(event.step, "restart", f"resumed at step {event.step}"))


def rewind(state: RunState, step: int) -> None:
    """The trainer is about to do `step` and what follows again: forget what we hold of it."""
    if step > state.progress.step:
        return
    for series in state.series.values():
        series.truncate(step)
    state.samples.forget_from(step)
    kept = [mark for mark in state.marks if mark.step < step or mark.kind == "restart"]
    state.marks.clear()
    state.marks.extend(kept)
    state.evaluations = [result for result in state.evaluations if result.step < step]
    losses = state.series.get(metric_names.LOSS)
    state.totals.tokens = losses.last_tokens if losses else 0
    state.totals.best_reward = state.totals.best_reward_step = None
    _note_best(state)


def series_named(state: RunState, name: str) -> Series | None:
    """The series of this name, made when it is new; None when there are too many."""
    if name not in state.series and len(state.series) >= _MAX_SERIES:
        return None
    return state.series.setdefault(name, Series())


def _merge(state: RunState, points: Mapping[str, list[Point]]) -> None:
    for name, added in points.items():
        if (series := series_named(state, name)) is not None:
            series.merge(added)


def _note_best(state: RunState) -> None:
    rewards = state.series.get(metric_names.REWARD)
    best = rewards.best() if rewards else None
    known = state.totals.best_reward
    if best is not None and best.value is not None and (known is None or best.value >= known):
        state.totals.best_reward, state.totals.best_reward_step = best.value, best.step
