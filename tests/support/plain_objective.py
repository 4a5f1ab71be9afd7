"""The objective once more, token by token on plain lists in float64, and random data for it.

It follows the papers' formulas one row at a time, without padding or masks, so that a fault in the
arrays of the trainer cannot be in here as well.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from grpo_protocol.config import GRPOConfig
from grpo_trainer.objective.step_objective import StepObjective
from grpo_trainer.objective.tokens import ScoredTokens

SEQUENCE_LOSSES = ("luspo", "gmpo")


@dataclass(frozen=True)
class PlainRow:
    """One completion. Numbers for each of its tokens, natural logarithms."""

    new: list[float]
    old: list[float]
    sampling: list[float]
    ref: list[float]
    entropy: list[float]
    advantage: float


def random_rows(seed: int, lengths: Sequence[int]) -> list[PlainRow]:
    """Rows of those lengths, far enough off-policy to reach every clip on both sides."""
    rng = np.random.default_rng(seed)

    def row(length: int, index: int) -> PlainRow:
        new = rng.normal(-1.5, 0.5, length)
        old = new - rng.normal(0.25 * (-1) ** index, 0.4, length)
        return PlainRow(
            new=new.tolist(),
            old=old.tolist(),
            sampling=(old - rng.normal(0.0, 0.2, length)).tolist(),
            ref=(new + rng.normal(0.0, 0.4, length)).tolist(),
            entropy=rng.uniform(0.1, 3.0, length).tolist(),
            advantage=float(rng.uniform(0.3, 1.5)) * (1, 1, -1, -1)[index % 4],
        )

    return [row(length, index) for index, length in enumerate(lengths)]


def padded(rows: Sequence[PlainRow], width: int, *, with_ref: bool) -> ScoredTokens:
    """The same rows as arrays [B, width], at unlike places, with noise where the mask is 0."""
    rng = np.random.default_rng(99)
    starts = [index % (width - len(row.new) + 1) for index, row in enumerate(rows)]

    def place(lines: Sequence[list[float]], fill: Callable[[], float]) -> mx.array:
        placed = []
        for line, start in zip(lines, starts, strict=True):
            tail = width - start - len(line)
            placed.append([fill() for _ in range(start)] + line + [fill() for _ in range(tail)])
        return mx.array(placed, dtype=mx.float32)

    def noise() -> float:
        return float(rng.uniform(-9.0, -0.1))

    return ScoredTokens(
        logprobs_B_T=place([row.new for row in rows], noise),
        entropy_B_T=place([row.entropy for row in rows], lambda: -noise()),
        old_logprobs_B_T=place([row.old for row in rows], noise),
        sampling_logprobs_B_T=place([row.sampling for row in rows], noise),
        ref_logprobs_B_T=place([row.ref for row in rows], noise) if with_ref else None,
        advantages_B=mx.array([row.advantage for row in rows], dtype=mx.float32),
        mask_B_T=place([[1.0] * len(row.new) for row in rows], lambda: 0.0),
    )


def plain_loss(
    batches: Sequence[Sequence[PlainRow]],
    objective: StepObjective,
    frozen: Sequence[Sequence[PlainRow]] | None = None,
) -> float:
    """The loss of a step. What has no gradient is computed from `frozen`, else from `batches`."""
    still = batches if frozen is None else frozen
    rows = [row for batch in batches for row in batch]
    num_tokens = sum(len(row.new) for row in rows)
    loss = 0.0
    for batch, still_batch in zip(batches, still, strict=True):
        terms = [_token_terms(*pair, objective) for pair in zip(batch, still_batch, strict=True)]
        total = sum(map(sum, terms))
        match objective.config.loss_type:
            case "bnpo":
                loss += total / sum(map(len, terms)) / len(batches)
            case "dr_grpo":
                loss += total / len(rows) / objective.config.max_completion_length
            case "dapo" | "cispo" | "vespo":
                loss += total / num_tokens
            case "luspo":
                loss += total / len(rows)
            case _:
                loss += sum(sum(term) / len(term) for term in terms) / len(rows)
    if objective.entropy_coef:
        threshold = (
            -math.inf if objective.entropy_threshold is None else objective.entropy_threshold
        )
        kept = [h for row in rows for h in row.entropy if h >= threshold]
        loss -= objective.entropy_coef * sum(kept) / len(kept)
    return loss


def gradient_by_differences(loss: Callable[[PlainRow], float], row: PlainRow) -> list[float]:
    """Central differences of `loss` in each log-prob of `row`."""
    step = 1e-6
    slopes = []
    for place in range(len(row.new)):
        ends = []
        for sign in (1, -1):
            moved = list(row.new)
            moved[place] += sign * step
            ends.append(loss(replace(row, new=moved)))
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return slopes


def _token_terms(row: PlainRow, still: PlainRow, objective: StepObjective) -> list[float]:
    config = objective.config
    ratios, still_ratios = _ratios(row, config), _ratios(still, config)
    rho = _mismatch(row, config)
    drift = [s - n for s, n in zip(still.sampling, still.new, strict=True)]
    threshold = config.off_policy_mask_threshold
    is_kept = row.advantage >= 0 or threshold is None or sum(drift) / len(drift) <= threshold
    terms = []
    for t in range(len(row.new)):
        term = _policy_term(t, row, still, ratios, still_ratios, rho, objective)
        if not is_kept:
            term = 0.0
        if objective.entropy_threshold is not None and row.entropy[t] < objective.entropy_threshold:
            term = 0.0
        if config.loss_type != "vespo":
            term *= rho[t]
        if config.kl_coef:
            d = row.ref[t] - row.new[t]
            kl = math.exp(d) - d - 1
            term += config.kl_coef * kl * (ratios[t] if config.kl_bias_correction else 1.0)
        terms.append(term)
    return terms


def _ratios(row: PlainRow, config: GRPOConfig) -> list[float]:
    logs = [n - o for n, o in zip(row.new, row.old, strict=True)]
    level = config.importance_sampling_level
    if level == "sequence" or config.loss_type in SEQUENCE_LOSSES:
        return [math.exp(sum(logs) / len(logs))] * len(logs)
    return [math.exp(log) for log in logs]


def _mismatch(row: PlainRow, config: GRPOConfig) -> list[float]:
    """ρ of each token; of a sequence the product, the same for all its tokens."""
    if config.mismatch_correction == "none":
        return [1.0] * len(row.new)
    level, mode = config.mismatch_correction.split("_")
    rho = [math.exp(o - s) for o, s in zip(row.old, row.sampling, strict=True)]
    if level == "sequence":
        rho = [math.prod(rho)] * len(rho)
    low = config.mismatch_min if config.mismatch_min is not None else 0.0
    high = config.mismatch_max
    if mode == "truncate":
        return [min(max(r, low), high) for r in rho]
    return [r if low <= r <= high else 0.0 for r in rho]


def _policy_term(
    t: int,
    row: PlainRow,
    still: PlainRow,
    ratios: list[float],
    still_ratios: list[float],
    rho: list[float],
    objective: StepObjective,
) -> float:
    config, a = objective.config, row.advantage
    match config.loss_type:
        case "cispo":
            return -min(still_ratios[t], config.clip_epsilon_high or 5.0) * a * row.new[t]
        case "sapo":
            tau = config.sapo_temperature_pos if a > 0 else config.sapo_temperature_neg
            return -4 / tau / (1 + math.exp(-tau * (ratios[t] - 1))) * a
        case "vespo":
            return -_vespo_weight(still, rho, config) * a * row.new[t]
        case "gmpo":
            logs = [n - o for n, o in zip(row.new, row.old, strict=True)]
            bound = config.gmpo_clip
            trusted = [min(x, bound) if a > 0 else max(x, -bound) for x in logs]
            return -math.exp(sum(trusted) / len(trusted)) * a
    high = 1 + (config.clip_epsilon_high or config.clip_epsilon)
    clipped = min(max(ratios[t], 1 - config.clip_epsilon), high)
    free = min(ratios[t], math.inf if config.delta is None else config.delta)
    return -min(free * a, clipped * a)


def _vespo_weight(row: PlainRow, rho: list[float], config: GRPOConfig) -> float:
    log_weight = sum(n - o for n, o in zip(row.new, row.old, strict=True))
    # One ρ of a whole sequence counts once.
    factors = rho[:1] if config.mismatch_correction.startswith("sequence") else rho
    log_weight += sum(math.log(max(factor, 1e-8)) for factor in factors)
    log_weight = min(max(log_weight, math.log(1e-8)), 20.0)
    is_good = row.advantage >= 0
    power = config.vespo_k_pos if is_good else config.vespo_k_neg
    decay = config.vespo_lambda_pos if is_good else config.vespo_lambda_neg
    return math.exp(decay + power * log_weight - decay * math.exp(log_weight))
