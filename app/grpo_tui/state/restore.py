"""Fills the charts from a record: what the stream has told stays, what it left out is added."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_tui.sanitize import clean_line
from grpo_tui.state import metric_names
from grpo_tui.state.history import add_evaluation, note_best, series_named
from grpo_tui.state.run_model import Evaluation, RunState
from grpo_tui.state.series import Point


class StoredStep(NamedTuple):
    """One row of a database's `training_steps`, with its `metrics` map merged into `columns`."""

    step: int
    created_at_ms: int
    total_tokens: int
    columns: Mapping[str, float | None]


@dataclass(frozen=True)
class Past:
    """Recorded steps in the form of charts."""

    points: dict[str, list[Point]] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    """Tokens generated up to and with each step."""


def past_of(rows: Iterable[tuple[int, int, int, Any]], tokens_before: int = 0) -> Past:
    """Rows are as in `StoredStep`, oldest first; `tokens_before` were generated before them."""
    past, tokens = Past(), tokens_before
    for step, created_at_ms, total_tokens, columns in rows:
        tokens += total_tokens
        past.tokens[step] = tokens
        for name, value in metric_names.stored_values(columns, total_tokens).items():
            point = Point(step, value, created_at_ms / 1000, tokens)
            past.points.setdefault(clean_line(name), []).append(point)
    return past


def merging(state: RunState, past: Past) -> Iterator[None]:
    """Merges series by series, so that a caller can do something else in between.

    Steps that the stream has not reached are left to it: a resumed run does them again.
    """
    state.version += 1
    end = state.progress.step
    last = max((step for step in past.tokens if step <= end), default=None)
    if last is None:
        return
    known = {step: tokens for step, tokens in past.tokens.items() if step <= end}
    shift = known[last] - _tokens_at(state, last)
    later = range(last + 1, end + 1)
    if shift >= 0:
        state.totals.tokens += shift
    for name, points in past.points.items():
        if (series := series_named(state, name)) is not None:
            series.merge(point for point in points if point.step <= end)
            yield
    for series in list(state.series.values()):
        if shift >= 0:
            series.restamp(known, later, shift)
            yield
    note_best(state)
    state.version += 1


def restore_steps(state: RunState, rows: Iterable[tuple[int, int, int, Any]]) -> None:
    """Merges rows as in `past_of` at once."""
    deque(merging(state, past_of(rows)), maxlen=0)


def restore_evaluations(state: RunState, results: Sequence[tuple[Evaluation, float]]) -> None:
    """Takes recorded evaluations, each with its time, that the stream has not told."""
    held = {(result.step, result.name) for result in state.evaluations}
    for result, time in results:
        name = clean_line(result.name)
        if result.step > state.progress.step or (result.step, name) in held:
            continue
        metrics = {
            clean_line(key.removeprefix("eval/")): value for key, value in result.metrics.items()
        }
        add_evaluation(state, Evaluation(result.step, name, result.num_prompts, metrics))
        for key, value in metrics.items():
            if (series := series_named(state, f"eval/{name}/{key}")) is not None:
                series.merge([Point(result.step, value, time, _tokens_at(state, result.step))])
    state.evaluations.sort(key=lambda result: result.step)


def tokens_up_to(state: RunState, step: int) -> int | None:
    """Tokens generated up to and with `step`, if the charts are sure of it."""
    point = _point_at(state, step)
    return point.tokens if point is not None and point.step == step and point.tokens else None


def _tokens_at(state: RunState, step: int) -> int:
    point = _point_at(state, step)
    return (point.tokens if point is not None else 0) or state.totals.resumed_tokens


def _point_at(state: RunState, step: int) -> Point | None:
    losses = state.series.get(metric_names.LOSS)
    point = losses.nearest(step) if losses else None
    return point if point is not None and point.step <= step else None
