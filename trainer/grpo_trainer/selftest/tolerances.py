"""How far apart two ways to compute the same may be, by the coarsest number format of a model.

A float32 sum in another order is off by about 1e-6 of its size. bfloat16 has 8 significant bits,
float16 and tf32 have 11, so a logit of 16 is known to 0.06 and to 0.008: log-probs of single tokens
from passes of other shapes differ by that and more, their mean over a few rows by much less.
"""

from typing import Any, NamedTuple

from grpo_trainer.number_format import NumberFormat, coarsest_format


class Tolerances(NamedTuple):
    """Largest differences that are rounding. Log-probs are in nats."""

    precision: str
    logprob: float
    """Of one token."""
    mean_logprob: float
    """Mean of the absolute differences of all tokens."""
    ratio: float
    """Of new to old probability from 1, where both come from passes of the same shape."""
    gradient: float
    """Of an element, as a share of the largest in its tensor."""
    rises: tuple[float, ...]
    """Rises of the objective to try, in its own unit: well above rounding, and small enough to be
    nearly linear."""
    least_rise: float
    """Share of the rise that the gradient promises which has to come."""


_OF: dict[NumberFormat, Tolerances] = {
    "float32": Tolerances("float32", 1e-3, 1e-4, 1e-5, 1e-3, (1e-2, 1e-3, 1e-4), 0.9),
    "tf32": Tolerances("float32 (tf32)", 0.1, 0.01, 1e-2, 0.1, (0.03, 0.1, 0.3), 0.25),
    "float16": Tolerances("float16", 0.1, 0.01, 1e-2, 0.05, (0.03, 0.1, 0.3), 0.25),
    # Of a move in full fine-tuning only what crosses a rounding border reaches the model.
    "bfloat16": Tolerances("bfloat16", 0.5, 0.05, 5e-2, 0.2, (0.1, 0.3, 1.0), 0.05),
}


def tolerances_of(model: Any) -> Tolerances:
    """Those of the coarsest format in `model`."""
    return _OF[coarsest_format(model)]
