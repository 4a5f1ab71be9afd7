"""The GRPO objective on the tokens that were sampled.

Per token: -min(c·A, clip(c, 1-ε_low, 1+ε_high)·A) with c the ratio of new to old probability
(PPO's clip, GRPO arXiv 2402.03300). The loss types differ in how tokens become one number:

    grpo     mean over the row's tokens, then over rows
    bnpo     sum over the micro-batch divided by its tokens (depends on micro-batching by design)
    dr_grpo  sum divided by rows · max_completion_length (arXiv 2503.20783)
    dapo     sum divided by all tokens of the step (arXiv 2503.14476)

No KL term and no entropy term. Shapes: B rows, T token positions; `mask_B_T` is 1 on the tokens of
the completion, its EOS included, and 0 on prompt and padding.
"""

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from grpo_protocol.config import LossType


@dataclass(frozen=True)
class Objective:
    """What does not change between micro-batches of one step."""

    loss_type: LossType
    epsilon_low: float
    epsilon_high: float
    max_completion_length: int
    total_rows: int
    """Rows of the whole step, over all its micro-batches."""
    total_tokens: int
    """Completion tokens of the whole step."""
    num_micro_batches: int


class LossParts(NamedTuple):
    """Sums over a micro-batch; the loss of a step is the sum over its micro-batches."""

    loss: mx.array
    clipped_low: mx.array
    """Tokens with A < 0 whose ratio fell below 1-ε_low."""
    clipped_high: mx.array
    """Tokens with A > 0 whose ratio rose above 1+ε_high."""


def grpo_loss(
    logprobs_B_T: mx.array,
    old_logprobs_B_T: mx.array,
    advantages_B: mx.array,
    mask_B_T: mx.array,
    objective: Objective,
) -> LossParts:
    """This micro-batch's share of the step's loss, in float32."""
    ratio = mx.exp(logprobs_B_T - old_logprobs_B_T)
    advantage = advantages_B[:, None]
    low, high = 1 - objective.epsilon_low, 1 + objective.epsilon_high
    clipped = mx.clip(ratio, low, high)
    token_loss = -mx.minimum(ratio * advantage, clipped * advantage)
    return LossParts(
        loss=_aggregate(token_loss * mask_B_T, mask_B_T, objective),
        clipped_low=((ratio < low) * (advantage < 0) * mask_B_T).sum(),
        clipped_high=((ratio > high) * (advantage > 0) * mask_B_T).sum(),
    )


def _aggregate(masked_B_T: mx.array, mask_B_T: mx.array, objective: Objective) -> mx.array:
    match objective.loss_type:
        case "grpo":
            lengths_B = mx.maximum(mask_B_T.sum(axis=1), 1)
            return (masked_B_T.sum(axis=1) / lengths_B).sum() / objective.total_rows
        case "bnpo":
            tokens = mx.maximum(mask_B_T.sum(), 1)
            return masked_B_T.sum() / tokens / objective.num_micro_batches
        case "dr_grpo":
            return masked_B_T.sum() / (objective.total_rows * objective.max_completion_length)
        case "dapo":
            return masked_B_T.sum() / max(objective.total_tokens, 1)
