"""What the objective reads of a micro-batch. Shapes: B rows, T target positions."""

from typing import NamedTuple

import mlx.core as mx

MAX_LOG_RATIO = 20.0
"""Beyond it a ratio has no meaning and its exponential none in float32."""


class ScoredTokens(NamedTuple):
    """The sampled tokens under every distribution that matters, natural logarithms throughout."""

    logprobs_B_T: mx.array
    """Under the policy; the only array that gradients reach, with `entropy_B_T`."""
    entropy_B_T: mx.array
    """Of the policy's whole next-token distribution, in nats."""
    old_logprobs_B_T: mx.array
    """Under the policy that sampled, as training computes them; the denominator of the ratio."""
    sampling_logprobs_B_T: mx.array
    """As they were when the tokens were drawn."""
    ref_logprobs_B_T: mx.array | None
    advantages_B: mx.array
    mask_B_T: mx.array
    """1 on the completion, its end token included; 0 on prompt and padding."""


class Sums(NamedTuple):
    """A quantity summed over each row, and over how many it was summed: both [B]."""

    values_B: mx.array
    counts_B: mx.array


def is_per_row(values: mx.array, mask_B_T: mx.array) -> bool:
    """Whether values are [B, 1], one for a row, rather than [B, T]."""
    return values.shape[1] == 1 != mask_B_T.shape[1]


def sums_of(values: mx.array, mask_B_T: mx.array) -> Sums:
    """Row sums of values [B, T] over the mask; values [B, 1] count once a row."""
    values = mx.stop_gradient(values)
    if is_per_row(values, mask_B_T):
        return Sums(values[:, 0], mx.ones_like(values[:, 0]))
    return Sums((values * mask_B_T).sum(axis=1), mask_B_T.sum(axis=1))


def extremes_of(values: mx.array, mask_B_T: mx.array, *, largest: bool) -> Sums:
    """The largest or smallest value of each row within the mask; no count where it is empty."""
    values = mx.stop_gradient(values)
    if is_per_row(values, mask_B_T):
        return Sums(values[:, 0], mx.ones_like(values[:, 0]))
    sign = 1.0 if largest else -1.0
    found = mx.where(mask_B_T > 0, sign * values, -mx.inf).max(axis=1)
    is_there = mask_B_T.sum(axis=1) > 0
    return Sums(sign * mx.where(is_there, found, 0.0), is_there.astype(mx.float32))


def row_mean(values_B_T: mx.array, mask_B_T: mx.array) -> mx.array:
    """[B, 1]: mean of each row over its mask; 0 where the mask is empty."""
    lengths = mx.maximum(mask_B_T.sum(axis=1, keepdims=True), 1)
    return (values_B_T * mask_B_T).sum(axis=1, keepdims=True) / lengths
