"""Which groups and completions are worth an update, and which prompts replace those that are not.

Dynamic sampling as in DAPO (arXiv 2503.14476, section 3.2), with a named reward that must spread: a
filter on the shaped sum keeps groups in which every answer is wrong.
"""

import random
import sys
from collections.abc import Iterator, Sequence

from grpo_protocol import ConfigError, GRPOConfig
from grpo_protocol.messages import FinishReason
from grpo_trainer.randomness import derived_seed
from grpo_trainer.rewards.calling import Score

TOTAL = "reward"
"""Name of the weighted sum, as against that of a function."""

_ROUNDING = 64 * sys.float_info.epsilon
"""What 64 roundings of a number near 1 add up to."""


def has_spread(values: Sequence[Score]) -> bool:
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


def spread_metric(config: GRPOConfig, names: Sequence[str], weights: Sequence[float]) -> str:
    """What must spread in a group: a function of `names`, or `reward` for the weighted sum.

    Without `dynamic_sampling_metric` it is the function that weighs most, the first of equals. A
    function that is itself named `reward` goes before the sum, here and where scores are looked up.
    Raises `ConfigError` for a name that is none.
    """
    metric = config.dynamic_sampling_metric
    if metric is None:
        name, _ = max(zip(names, weights, strict=True), key=lambda pair: abs(pair[1]))
        return name
    if metric not in (*names, TOTAL):
        raise ConfigError(
            f"dynamic_sampling_metric={metric!r}: no reward function has this name; use one of "
            f"{', '.join(names)}, or {TOTAL} for the weighted sum"
        )
    return metric


def refill_prompts(num_prompts: int, seed: int, step: int, skip: Sequence[int]) -> Iterator[int]:
    """Dataset rows to sample instead of groups without spread, without end.

    The order depends on (seed, step) alone. Rows in `skip`, those that the step has sampled
    already, come after all others; once every row was given, a new order of all rows begins.
    Raises `ValueError` for an empty dataset.
    """
    if num_prompts < 1:
        raise ValueError(f"num_prompts={num_prompts}: there is no prompt to refill with")
    return _refill(num_prompts, seed, step, frozenset(skip))


def _refill(num_prompts: int, seed: int, step: int, later: frozenset[int]) -> Iterator[int]:
    passes = 0
    while True:
        generator = random.Random(derived_seed(seed, "refill", step, passes))
        # `random()` alone promises the same numbers in every Python version.
        order = sorted(range(num_prompts), key=lambda _: generator.random())
        yield from sorted(order, key=lambda row: row in later)
        later = frozenset()
        passes += 1


def is_degenerate(finish_reason: FinishReason, num_tokens: int, limit: int) -> bool:
    """Whether a completion was cut off at `limit` tokens, or within a tenth of it."""
    return finish_reason == "length" and num_tokens >= limit * 9 // 10


def is_truncated(finish_reason: FinishReason) -> bool:
    """Whether a completion did not come to an end of its own."""
    return finish_reason != "stop"
