"""Which tokens of a step are uncertain enough to get a policy gradient (arXiv 2506.01939)."""

from typing import NamedTuple

import mlx.core as mx

from grpo_trainer.trees import number


class EntropyThreshold(NamedTuple):
    """Where the tokens of highest entropy begin, in nats, and how many there are."""

    entropy: float
    num_tokens: int


def entropy_threshold(entropies: list[float], proportion: float) -> EntropyThreshold:
    """The threshold above which that `proportion` of all tokens of a step lies."""
    values = mx.array(entropies)
    # The forward pass with gradients may differ from that of the entropies in the last bit.
    threshold = linear_quantile(values, 1 - proportion) - 1e-6
    return EntropyThreshold(threshold, int(number((values >= threshold).sum())))


def linear_quantile(values: mx.array, proportion: float) -> float:
    """The `proportion`-quantile of values [N], interpolated linearly as `torch.quantile` does."""
    ordered = mx.sort(values)
    place = proportion * (values.size - 1)
    below = int(place)
    above = min(below + 1, values.size - 1)
    low, high = number(ordered[below]), number(ordered[above])
    return low + (high - low) * (place - below)
