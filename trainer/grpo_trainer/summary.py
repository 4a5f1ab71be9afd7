"""Means and spreads of plain numbers, in float64 and without loss of precision."""

import math
from collections.abc import Iterable, Sequence


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
