"""One metric over the run: points with a step, a wall time and the tokens generated so far.

A value that was not finite is kept as a gap, so that a diverged run shows where it diverged.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Axis = Literal["step", "time", "tokens"]

_GAP: Final = math.nan


class Point(NamedTuple):
    """A value and where it lies on each axis."""

    step: int
    value: float | None
    time: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Column:
    """What one column of a chart stands for; spikes survive as `low` and `high`."""

    low: float
    high: float
    last: float
    gap: bool = False
    """A value in this column was not finite."""


@dataclass(frozen=True)
class Gap:
    """A column that holds only values that were not finite."""


class Series:
    """Points in the order of their steps. Fast for hundreds of thousands of them."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._times = array("d")
        self._tokens = array("q")
        self._values = array("d")
        self._smoothed: dict[float, array[float]] = {}
        self.gaps = 0
        """Values that were not finite."""
        self.low: float | None = None
        self.high: float | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def __bool__(self) -> bool:
        return len(self._steps) > 0

    def append(self, step: int, value: float | None, time: float = 0.0, tokens: int = 0) -> None:
        """Adds a point. A step at or before the last replaces everything from there on."""
        if self._steps and step <= self._steps[-1]:
            self.truncate(step)
        self._steps.append(step)
        self._times.append(time)
        self._tokens.append(tokens)
        self._values.append(_GAP if value is None or not math.isfinite(value) else value)
        self._count(self._values[-1])

    def truncate(self, step: int) -> None:
        """Forgets every point from `step` on."""
        keep = bisect_left(self._steps, step)
        if keep == len(self._steps):
            return
        for column in (self._steps, self._times, self._tokens, self._values):
            del column[keep:]
        self._recount()

    def merge(self, points: Iterable[Point]) -> None:
        """Adds points of steps that are not known yet, wherever they belong.

        A held point without tokens comes from a summary; one that has them takes its place.
        """
        held = {point.step: point for point in self.points()}
        new = {
            point.step: point
            for point in points
            if point.step not in held or (point.tokens and not held[point.step].tokens)
        }
        if not new:
            return
        merged = sorted({**held, **new}.values(), key=lambda point: point.step)
        self._steps = array("q", (point.step for point in merged))
        self._times = array("d", (point.time for point in merged))
        self._tokens = array("q", (point.tokens for point in merged))
        self._values = array(
            "d",
            (_GAP if p.value is None or not math.isfinite(p.value) else p.value for p in merged),
        )
        self._recount()

    def restamp(self, tokens: Mapping[int, int], later: range, shift: int) -> None:
        """Moves points on the axis of tokens: to `tokens` of their step, or by `shift`."""
        before = 0
        for index, step in enumerate(self._steps):
            value = tokens.get(step, self._tokens[index])
            if step in later:
                value += shift
            # The axis must rise whatever was told.
            before = self._tokens[index] = max(before, value)

    @property
    def last(self) -> float | None:
        """Newest value; None when there is none or it was not finite."""
        return _known(self._values[-1]) if self._values else None

    @property
    def last_step(self) -> int | None:
        return self._steps[-1] if self._steps else None

    @property
    def last_tokens(self) -> int:
        """Tokens generated up to the newest point."""
        return self._tokens[-1] if self._tokens else 0

    def values(self, count: int | None = None) -> list[float | None]:
        """The newest `count` values, or all, gaps as None."""
        return [_known(value) for value in (self._values[-count:] if count else self._values)]

    def points(self, count: int | None = None) -> list[Point]:
        """The newest `count` points, or all."""
        start = max(0, len(self) - count) if count else 0
        return [Point(*row) for row in self._rows(start)]

    def axis(self, axis: Axis) -> Sequence[float]:
        """Positions of the points on one axis. For reading only."""
        if axis == "step":
            return self._steps
        return self._times if axis == "time" else self._tokens

    def extent(self, axis: Axis = "step") -> tuple[float, float] | None:
        """First and last position on an axis."""
        positions = self.axis(axis)
        return (positions[0], positions[-1]) if positions else None

    def nearest(self, position: float, axis: Axis = "step") -> Point | None:
        """The last point at or before `position`, or else the first."""
        if not self:
            return None
        index = max(0, bisect_right(self.axis(axis), position) - 1)
        return Point(*self._row(index))

    def best(self) -> Point | None:
        """The point with the highest value; the first of equal ones."""
        if self.high is None:
            return None
        return Point(*self._row(self._values.index(self.high)))

    def smoothed(self, weight: float) -> Sequence[float]:
        """Exponential mean: `weight` of the past, the rest of the new value. Gaps stay NaN."""
        if weight <= 0:
            return self._values
        cache = self._smoothed.setdefault(weight, array("d"))
        mean = next((value for value in reversed(cache) if value == value), None)
        for value in self._values[len(cache) :]:
            if value == value:
                mean = value if mean is None else weight * mean + (1 - weight) * value
                cache.append(mean)
            else:
                cache.append(_GAP)
        return cache

    def columns(
        self,
        count: int,
        low: float | None = None,
        high: float | None = None,
        *,
        axis: Axis = "step",
        smoothing: float = 0.0,
    ) -> list[Column | Gap | None]:
        """The points between `low` and `high` of an axis in `count` equal columns.

        None is a column without points. Without bounds the whole series is taken.
        """
        extent = self.extent(axis)
        if extent is None or count < 1:
            return [None] * max(0, count)
        low, high = extent[0] if low is None else low, extent[1] if high is None else high
        positions, values = self.axis(axis), self.smoothed(smoothing)
        width = (high - low) / count or 1.0
        start, result = bisect_left(positions, low), list[Column | Gap | None]()
        for index in range(count):
            last = index == count - 1
            end = (
                bisect_right(positions, high)
                if last
                else bisect_left(positions, low + (index + 1) * width, start)
            )
            result.append(self._column(values[start:end]))
            start = max(start, end)
        return result

    def trend(self, threshold: float = 1e-4, window: int = 10) -> int:
        """1 up, -1 down, 0 flat: mean of the newest `window` values against those before."""
        recent = [value for value in self._values[-2 * window :] if value == value]
        if len(recent) < 2:
            return 0
        half = max(1, len(recent) // 2)
        before, after = recent[:-half], recent[-half:]
        past = math.fsum(before) / len(before)
        change = math.fsum(after) / len(after) - past
        if abs(change) <= threshold * max(1.0, abs(past)):
            return 0
        return 1 if change > 0 else -1

    def _column(self, values: Sequence[float]) -> Column | Gap | None:
        if not values:
            return None
        finite = [v for v in values if v == v] if self.gaps else values
        if not finite:
            return Gap()
        return Column(min(finite), max(finite), finite[-1], len(finite) < len(values))

    def _row(self, index: int) -> tuple[int, float | None, float, int]:
        value = _known(self._values[index])
        return self._steps[index], value, self._times[index], self._tokens[index]

    def _rows(self, start: int = 0) -> Iterable[tuple[int, float | None, float, int]]:
        return (self._row(index) for index in range(start, len(self)))

    def _count(self, value: float) -> None:
        if value != value:
            self.gaps += 1
            return
        self.low = value if self.low is None else min(self.low, value)
        self.high = value if self.high is None else max(self.high, value)

    def _recount(self) -> None:
        self._smoothed.clear()
        finite = [value for value in self._values if value == value]
        self.gaps = len(self._values) - len(finite)
        self.low, self.high = (min(finite), max(finite)) if finite else (None, None)


def _known(value: float) -> float | None:
    return value if value == value else None
