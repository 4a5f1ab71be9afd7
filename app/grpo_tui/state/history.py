"""The charts' past: what a resumed trainer tells of it, and what is taken back."""

from typing import Final

from grpo_protocol.messages import ResumeState
from grpo_tui.state import metric_names
from grpo_tui.state.progress import Progress
from grpo_tui.state.run_model import Evaluation, Mark, RunState
from grpo_tui.state.series import Point, Series

_MAX_EVALUATIONS: Final = 2000
_MAX_SERIES: Final = 500
"""Metric names come from outside: a trainer that invents new ones for ever must not eat memory."""


def resume(state: RunState, event: ResumeState, now: float) -> None:
    """Takes the position, the newest history and the totals of a resumed run."""
    state.resumed = True
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
    for name, added in points.items():
        if (series := series_named(state, name)) is not None:
            series.merge(added)
    state.totals.tokens = event.aggregates.total_tokens or state.totals.tokens
    state.totals.resumed_tokens = state.totals.tokens
    want_past(state, 0)
    best = event.aggregates.best_reward
    note_best(state)
    if best is not None and best > (state.totals.best_reward or float("-inf")):
        state.totals.best_reward, state.totals.best_reward_step = best, None
    state.marks.append(Mark(event.step, "restart", f"resumed at step {event.step}"))


def start_over(state: RunState) -> None:
    """The trainer begins at its first step: nothing that is held holds any more."""
    rewind(state, 0)
    state.progress = Progress()
    state.totals.resumed_tokens = 0
    state.past_wanted = None


def want_past(state: RunState, after: int) -> None:
    """Steps after `after` were not told; the record may know them."""
    state.past_wanted = after if state.past_wanted is None else min(after, state.past_wanted)


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
    note_best(state)


def add_evaluation(state: RunState, result: Evaluation) -> None:
    """Takes a result, in place of an earlier one of the same step and name."""
    place = (result.step, result.name)
    kept = [other for other in state.evaluations if (other.step, other.name) != place]
    state.evaluations = [*kept, result][-_MAX_EVALUATIONS:]


def series_named(state: RunState, name: str) -> Series | None:
    """The series of this name, made when it is new; None when there are too many."""
    if name not in state.series and len(state.series) >= _MAX_SERIES:
        return None
    return state.series.setdefault(name, Series())


def note_best(state: RunState) -> None:
    """The best reward of the chart is the record, unless an earlier part had a better one."""
    rewards = state.series.get(metric_names.REWARD)
    best = rewards.best() if rewards else None
    known = state.totals.best_reward
    if best is not None and best.value is not None and (known is None or best.value >= known):
        state.totals.best_reward, state.totals.best_reward_step = best.value, best.step
