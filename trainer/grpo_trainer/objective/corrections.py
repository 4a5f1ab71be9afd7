"""Weights and masks on the policy term, and the divergence from the reference.

Sampling and training compute the same probabilities in different ways (cached decoding, other
kernels, a truncated distribution). ρ = training / sampling probability under the weights that
sampled corrects for it: capped (TIS, Yao et al. 2025, https://fengyao.notion.site/off-policy-rl) or
dropped where it is out of bounds (MIS).
"""

import mlx.core as mx

from grpo_protocol.config import GRPOConfig
from grpo_trainer.objective.tokens import MAX_LOG_RATIO, ScoredTokens, row_mean


def mismatch_weights(tokens: ScoredTokens, config: GRPOConfig) -> mx.array | None:
    """ρ after truncation or masking, [B, T] or for the whole sequence [B, 1]; None when off."""
    if config.mismatch_correction == "none":
        return None
    level, mode = config.mismatch_correction.split("_")
    log_rho = mx.stop_gradient(tokens.old_logprobs_B_T - tokens.sampling_logprobs_B_T)
    log_rho = log_rho * tokens.mask_B_T
    if level == "sequence":
        log_rho = log_rho.sum(axis=1, keepdims=True)
    rho = mx.exp(mx.clip(log_rho, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    low, high = config.mismatch_min or 0.0, config.mismatch_max
    if mode == "truncate":
        return mx.clip(rho, low, high)
    return mx.where((rho >= low) & (rho <= high), rho, 0.0)


def off_policy_mask(tokens: ScoredTokens, threshold: float) -> mx.array:
    """[B, 1]: 0 for a bad completion that the policy has moved away from (DeepSeek-V3.2)."""
    drift = row_mean(
        mx.stop_gradient(tokens.sampling_logprobs_B_T - tokens.logprobs_B_T), tokens.mask_B_T
    )
    keep = (tokens.advantages_B[:, None] >= 0) | (drift <= threshold)
    return keep.astype(mx.float32)


def kl_to_reference(tokens: ScoredTokens) -> mx.array:
    """k3 estimator of KL(policy ‖ reference) for each token: exp(d) - 1 - d, d = ref - new.

    Never negative. Beyond `MAX_LOG_RATIO` it is flat and has no gradient.
    """
    assert tokens.ref_logprobs_B_T is not None
    difference = tokens.ref_logprobs_B_T - tokens.logprobs_B_T
    difference = mx.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return mx.expm1(difference) - difference
