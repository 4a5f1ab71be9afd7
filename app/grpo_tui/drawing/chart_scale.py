"""The arithmetic of a chart: ranges, the visible window, ticks.

Everything here survives NaN, infinity, a constant series and values near the largest double.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """A closed interval with `low` < `high`."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Where `value` lies, from 0 at `low` to 1 at `high`."""
        # Halves, because high - low overflows when the values span the range of a double.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)


def range_of(values: Iterable[float], least: float = 1e-6) -> Range | None:
    """The smallest range that holds every finite value; None when there is none.

    A constant series gets a range around it, of at least `least` to each side.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    if Range(low, high).high / 2 - low / 2 > abs(high) * 1e-12:
        return Range(low, high)
    margin = max(abs(low) * 0.1, least)
    return Range(max(low - margin, -1.7e308), min(high + margin, 1.7e308))


def ticks(span: Range, count: int) -> list[float]:
    """At most `count` round values in `span`, at steps of 1, 2, 2.5 or 5 times a power of ten."""
    if count < 1:
        return []
    raw = (span.high / 2 - span.low / 2) / max(1, count) * 2
    if not math.isfinite(raw) or raw <= 0:
        return [span.low, span.high][:count]
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = factor * power
        if not math.isfinite(step):
            break
        first, last = math.ceil(span.low / step - 1e-9), math.floor(span.high / step + 1e-9)
        if 0 <= last - first < count:
            return [index * step for index in range(first, last + 1)]
    return []


def window(full: Range, zoom: int, center: float | None) -> Range:
    """The part of `full` seen at `zoom` doublings: the end of it, or the part around `center`."""
    width = (full.high - full.low) / 2**zoom
    if zoom <= 0 or not math.isfinite(width) or width <= 0:
        return full
    high = full.high if center is None else min(full.high, center + width / 2)
    low = max(full.low, high - width)
    return Range(low, low + width)
