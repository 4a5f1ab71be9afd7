"""A series as one row of signs, one column for each bucket.

Short series keep one column a value and fill from the right. Longer ones are split into as many
buckets as there are columns and show the last value of each. A bucket that holds a value which was
not finite shows a gap, so that one NaN among thousands is seen. Flat series stand in the middle.
"""

import math
from collections.abc import Sequence

from grpo_tui.drawing.glyphs import Glyphs


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs) -> str:
    """At most `width` columns for `values`; shorter when there are fewer values."""
    if width <= 0 or not values:
        return ""
    buckets = _buckets(values, width)
    finite = [value for value in buckets if value is not None]
    if not finite:
        return glyphs.gap * len(buckets)
    low, high = min(finite), max(finite)
    return "".join(
        glyphs.gap if value is None else _level(value, low, high, glyphs.levels)
        for value in buckets
    )


def _buckets(values: Sequence[float | None], width: int) -> list[float | None]:
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    return [_last_if_finite(values[edges[i] : edges[i + 1]]) for i in range(count)]


def _last_if_finite(values: Sequence[float | None]) -> float | None:
    if any(value is None or not math.isfinite(value) for value in values):
        return None
    return values[-1]


def _level(value: float, low: float, high: float, levels: str) -> str:
    # Halves, because high - low overflows when the values span the range of a double.
    span = high / 2 - low / 2
    if span <= 0:
        return levels[len(levels) // 2 - 1]
    share = (value / 2 - low / 2) / span
    return levels[min(len(levels) - 1, int(share * len(levels)))]
