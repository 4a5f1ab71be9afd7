"""The policy term of every loss type, per token [B, T] or per row [B, 1].

With c the ratio of new to old probability (of a token, or at sequence level the exponential of the
row's mean log-ratio, GSPO arXiv 2507.18071) and A the advantage:

    grpo bnpo dr_grpo dapo luspo  -min(min(c, δ)·A, clip(c, 1-ε_low, 1+ε_high)·A)
        arXiv 2402.03300, 2503.20783, 2503.14476; luspo 2602.05261; δ 2505.07291
    cispo  -sg(min(c, cap))·A·log π                                     arXiv 2506.13585
    sapo   -(4/τ)·sigmoid(τ·(c-1))·A, τ by the sign of A                arXiv 2511.20347
    vespo  -sg(φ)·A·log π, φ = exp(λ + k·log w - λ·w), w the ratio of
           the whole sequence, k and λ by the sign of A                 arXiv 2602.10693
    gmpo   -exp(mean of log-ratios, each clipped on the side where
           it would be trusted too much)·A                              arXiv 2507.20673
"""

import math
from typing import NamedTuple

import mlx.core as mx

from grpo_trainer.objective.step_objective import StepObjective
from grpo_trainer.objective.tokens import (
    MAX_LOG_RATIO,
    ScoredTokens,
    Sums,
    extremes_of,
    is_per_row,
    row_mean,
    sums_of,
)

_VESPO_LOG_FLOOR = math.log(1e-8)


class PolicyTerm(NamedTuple):
    """The term, the ratio that the KL correction uses, and what to report."""

    loss: mx.array
    ratio: mx.array
    sums: dict[str, Sums]


def policy_term(
    tokens: ScoredTokens, objective: StepObjective, correction: mx.array | None
) -> PolicyTerm:
    """The policy term, without `correction` except in vespo, whose weight contains it.

    `correction` is training over sampling probability, [B, T] or [B, 1].
    """
    advantages = tokens.advantages_B[:, None]
    difference = tokens.logprobs_B_T - tokens.old_logprobs_B_T
    log_ratio_B_T = mx.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    log_ratio = log_ratio_B_T
    if objective.ratio_level == "sequence":
        log_ratio = row_mean(log_ratio_B_T, tokens.mask_B_T)
    ratio = mx.exp(log_ratio)
    match objective.config.loss_type:
        case "cispo":
            loss, sums = _cispo(ratio, advantages, tokens, objective)
        case "sapo":
            loss, sums = _sapo(ratio, advantages, objective), {}
        case "vespo":
            loss, sums = _vespo(log_ratio_B_T, advantages, tokens, objective, correction)
        case "gmpo":
            loss, sums = _gmpo(log_ratio_B_T, advantages, tokens, objective)
        case _:
            loss, sums = _clipped(ratio, advantages, tokens, objective)
    sums["ratio"] = sums_of(ratio, tokens.mask_B_T)
    sums["ratio_deviation"] = extremes_of(mx.abs(ratio - 1), tokens.mask_B_T, largest=True)
    return PolicyTerm(loss, ratio, sums)


def _clipped(
    ratio: mx.array, advantages: mx.array, tokens: ScoredTokens, objective: StepObjective
) -> tuple[mx.array, dict[str, Sums]]:
    low, high = 1 - objective.config.clip_epsilon, 1 + objective.epsilon_high
    clipped = mx.clip(ratio, low, high)
    if objective.config.delta is not None:
        ratio = mx.minimum(ratio, objective.config.delta)
    loss = -mx.minimum(ratio * advantages, clipped * advantages)
    return loss, _clip_sums(ratio < low, ratio > high, advantages, tokens.mask_B_T)


def _clip_sums(
    is_low: mx.array, is_high: mx.array, advantages: mx.array, mask_B_T: mx.array
) -> dict[str, Sums]:
    low = is_low & (advantages < 0)
    high = is_high & (advantages > 0)
    return {
        "clip_ratio/low": sums_of(low.astype(mx.float32), mask_B_T),
        "clip_ratio/high": sums_of(high.astype(mx.float32), mask_B_T),
        "clip_ratio/region": sums_of((low | high).astype(mx.float32), mask_B_T),
    }


def _cispo(
    ratio: mx.array, advantages: mx.array, tokens: ScoredTokens, objective: StepObjective
) -> tuple[mx.array, dict[str, Sums]]:
    cap = objective.epsilon_high
    weight = mx.stop_gradient(mx.minimum(ratio, cap))
    capped = ((ratio > cap) & (advantages > 0)).astype(mx.float32)
    loss = -weight * advantages * tokens.logprobs_B_T
    return loss, {"cispo_clip_ratio": sums_of(capped, tokens.mask_B_T)}


def _sapo(ratio: mx.array, advantages: mx.array, objective: StepObjective) -> mx.array:
    config = objective.config
    steepness = mx.where(advantages > 0, config.sapo_temperature_pos, config.sapo_temperature_neg)
    return -4 / steepness * mx.sigmoid(steepness * (ratio - 1)) * advantages


def _vespo(
    log_ratio_B_T: mx.array,
    advantages: mx.array,
    tokens: ScoredTokens,
    objective: StepObjective,
    correction: mx.array | None,
) -> tuple[mx.array, dict[str, Sums]]:
    config = objective.config
    log_weight = (log_ratio_B_T * tokens.mask_B_T).sum(axis=1, keepdims=True)
    if correction is not None:
        log_correction = mx.log(mx.maximum(correction, 1e-8))
        if not is_per_row(correction, tokens.mask_B_T):
            log_correction = (log_correction * tokens.mask_B_T).sum(axis=1, keepdims=True)
        log_weight = log_weight + log_correction
    log_weight = mx.clip(log_weight, _VESPO_LOG_FLOOR, MAX_LOG_RATIO)
    power = mx.where(advantages >= 0, config.vespo_k_pos, config.vespo_k_neg)
    decay = mx.where(advantages >= 0, config.vespo_lambda_pos, config.vespo_lambda_neg)
    weight = mx.exp(decay + power * log_weight - decay * mx.exp(log_weight))
    weight = mx.stop_gradient(mx.where(mx.isfinite(weight), weight, 0.0))
    loss = -weight * advantages * tokens.logprobs_B_T
    return loss, {"vespo/phi_seq": sums_of(weight, tokens.mask_B_T)}


def _gmpo(
    log_ratio_B_T: mx.array, advantages: mx.array, tokens: ScoredTokens, objective: StepObjective
) -> tuple[mx.array, dict[str, Sums]]:
    bound = objective.config.gmpo_clip
    clipped = mx.clip(log_ratio_B_T, -bound, bound)
    pessimistic = mx.where(
        advantages > 0, mx.minimum(log_ratio_B_T, clipped), mx.maximum(log_ratio_B_T, clipped)
    )
    loss = -mx.exp(row_mean(pessimistic, tokens.mask_B_T)) * advantages
    is_low, is_high = log_ratio_B_T < -bound, log_ratio_B_T > bound
    return loss, _clip_sums(is_low, is_high, advantages, tokens.mask_B_T)
