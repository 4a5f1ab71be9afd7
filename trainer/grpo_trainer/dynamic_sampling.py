"""Which groups are worth an update, and which prompts are sampled instead of those that are not.

Dynamic sampling as in DAPO (arXiv 2503.14476, section 3.2), with a named reward that must spread: a
filter on the shaped sum keeps groups in which every answer is wrong.
"""

import random
from collections.abc import Iterator, Sequence

from grpo_protocol import ConfigError, GRPOConfig
from grpo_trainer.randomness import derived_seed

TOTAL = "reward"
"""Name of the weighted sum, as against that of a function."""


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
