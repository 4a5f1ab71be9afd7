"""Means and spreads of plain numbers, in float64 and without loss of precision."""

import math
import sys
from collections.abc import Iterable, Sequence

_ROUNDING = 64 * sys.float_info.epsilon
"""What 64 roundings of a number near 1 add up to."""


def mean_of(values: Sequence[float]) -> float:
    """Mean, summed without loss of precision; 0 for none."""
    return math.fsum(values) / len(values) if values else 0.0


def known_mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are known; None when none is."""
    known = [value for value in values if value is not None]
    return mean_of(known) if known else None


def known_std(values: Iterable[float | None]) -> float | None:
    """`sample_std` of the values that are known; None when none is."""
    known = [value for value in values if value is not None]
    return sample_std(known) if known else None


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with ddof 1 in two passes; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = mean_of(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def has_spread(values: Sequence[float | None]) -> bool:
    """Whether the known `values` of one group differ by more than float64 rounding.

    .1 + .2 and .3 are equal here: sums of the same parts in another order must not become an
    advantage. The bound is relative to the largest value, so that a small spread on a large common
    offset counts, and absolute below 1, where parts of that size may have cancelled. TRL calls a
    standard deviation up to 1e-8 zero; that would hide spreads which `scale_rewards=none` keeps.
    """
    known = [value for value in values if value is not None]
    if not known:
        return False
    low, high = min(known), max(known)
    return high - low > _ROUNDING * max(1.0, abs(low), abs(high))
