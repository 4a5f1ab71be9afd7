"""What a batch of rows adds to the step's loss: policy term, corrections, KL, aggregation, entropy.

How tokens become one number, with m the mask:

    grpo sapo gmpo     mean over the row's tokens, then over the rows of the step
    bnpo               sum over the micro-batch divided by its tokens (depends on the split)
    dr_grpo            sum divided by rows · max_completion_length
    dapo cispo vespo   sum divided by all tokens of the step
    luspo              sum over the row's tokens, then mean over rows

The order of factors is TRL's: policy term × off-policy mask × entropy mask × ρ, then + β·KL.
"""

from typing import NamedTuple

import mlx.core as mx

from grpo_trainer.objective.corrections import (
    kl_to_reference,
    mismatch_weights,
    off_policy_mask,
)
from grpo_trainer.objective.policy_loss import policy_term
from grpo_trainer.objective.step_objective import StepObjective
from grpo_trainer.objective.tokens import ScoredTokens, Sums, extremes_of, sums_of


class MicroBatchLoss(NamedTuple):
    """Of some rows; the loss of a step is the sum over all."""

    loss: mx.array
    policy_loss: mx.array
    """Without the entropy bonus."""
    sums: dict[str, Sums]
    """What is reported, for each row."""


def step_loss(tokens: ScoredTokens, objective: StepObjective) -> MicroBatchLoss:
    """Loss in float32, and what the step's metrics are made of."""
    config, mask_B_T = objective.config, tokens.mask_B_T
    correction = mismatch_weights(tokens, config)
    term, ratio, sums = policy_term(tokens, objective, correction)
    active = mask_B_T
    if config.off_policy_mask_threshold is not None:
        term = term * off_policy_mask(tokens, config.off_policy_mask_threshold)
    if objective.entropy_threshold is not None:
        above = mx.stop_gradient(tokens.entropy_B_T) >= objective.entropy_threshold
        term = term * above
        active = mask_B_T * above
    if correction is not None:
        sums["correction"] = sums_of(correction, mask_B_T)
        sums["correction_min"] = extremes_of(correction, mask_B_T, largest=False)
        sums["correction_max"] = extremes_of(correction, mask_B_T, largest=True)
        if config.loss_type != "vespo":
            term = term * correction
    if tokens.ref_logprobs_B_T is not None:
        kl = kl_to_reference(tokens)
        if config.kl_bias_correction:
            kl = kl * ratio
        sums["kl"] = sums_of(kl, mask_B_T)
        term = term + config.kl_coef * kl
    policy_loss = _aggregate(mx.broadcast_to(term, mask_B_T.shape) * mask_B_T, mask_B_T, objective)
    loss = policy_loss
    if objective.entropy_coef:
        count = (
            objective.total_tokens if objective.entropy_tokens is None else objective.entropy_tokens
        )
        loss = loss - objective.entropy_coef * (tokens.entropy_B_T * active).sum() / max(count, 1)
    sums["entropy"] = sums_of(tokens.entropy_B_T, mask_B_T)
    sums["effective_entropy"] = sums_of(tokens.entropy_B_T, active)
    difference = mx.abs(tokens.old_logprobs_B_T - tokens.sampling_logprobs_B_T)
    sums["mismatch"] = sums_of(difference, mask_B_T)
    sums["mismatch_max"] = extremes_of(difference, mask_B_T, largest=True)
    return MicroBatchLoss(loss, policy_loss, sums)


def _aggregate(masked_B_T: mx.array, mask_B_T: mx.array, objective: StepObjective) -> mx.array:
    match objective.config.loss_type:
        case "bnpo":
            tokens = objective.micro_batch_tokens or mx.maximum(mask_B_T.sum(), 1)
            return masked_B_T.sum() / tokens / objective.num_micro_batches
        case "dr_grpo":
            return masked_B_T.sum() / (
                objective.total_rows * objective.config.max_completion_length
            )
        case "dapo" | "cispo" | "vespo":
            return masked_B_T.sum() / max(objective.total_tokens, 1)
        case "luspo":
            return masked_B_T.sum() / objective.total_rows
        case _:
            lengths_B = mx.maximum(mask_B_T.sum(axis=1), 1)
            return (masked_B_T.sum(axis=1) / lengths_B).sum() / objective.total_rows
