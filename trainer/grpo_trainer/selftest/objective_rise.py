"""Whether the objective rises along the first step as far as its gradient promises.

The objective is what every loss comes down to while no ratio has moved: log-probs weighed by
advantage, plus the entropy bonus. It is written down here once more, apart from the losses, so that
a wrong sign or a gradient of something else shows. Shapes: B rows, T tokens of a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mlx.utils import tree_map

from grpo_protocol.config import GRPOConfig
from grpo_trainer.objective.entropy_mask import entropy_threshold
from grpo_trainer.selftest.bench import Bench
from grpo_trainer.training_rows import TrainingRow

TokenValues = list[list[float]]


@dataclass(frozen=True)
class Rise:
    """What a move along the step did, in nats and in the unit of the loss."""

    promised: float
    measured: float
    good: float
    """Mean change of the log-prob of a token at advantages above 0."""
    bad: float
    """The same below 0."""


def rises_along_the_step(bench: Bench) -> Iterator[Rise]:
    """Rises of each size that is worth trying; the weights stay as they are.

    The step itself may be far too small to measure, or too large to be linear, so it is scaled.
    Raises `ArithmeticError` when the gradient promises nothing.
    """
    before, _ = bench.start_scores
    weights, bonus = _token_weights(bench)
    step = bench.first_step
    whole = step.promised_rise()
    if not whole > 0:
        raise ArithmeticError(f"the step goes uphill: it changes the loss by {-whole:.2g}")
    start = _total(bench.start_scores, weights, bonus)
    try:
        for promised in bench.tolerances.rises:
            scale = promised / whole
            bench.policy.install(
                tree_map(lambda a, b, s=scale: a + s * (b - a), step.before, step.after)
            )
            after = bench.learner.scores(bench.rows, bench.config)
            measured = _total(after, weights, bonus) - start
            good, bad = (_mean_change(bench.rows, before, after[0], sign) for sign in (1, -1))
            yield Rise(promised, measured, good, bad)
    finally:
        bench.policy.install(bench.policy.weights)


def _token_weights(bench: Bench) -> tuple[TokenValues, float]:
    """What each token's log-prob is multiplied by, and each entropy of a token with a weight."""
    config, rows = bench.config, bench.rows
    _, entropies = bench.start_scores
    threshold, kept = -float("inf"), sum(map(len, entropies))
    if config.top_entropy_quantile < 1:
        every = [entropy for line in entropies for entropy in line]
        threshold, kept = entropy_threshold(every, config.top_entropy_quantile)
    weights = [
        [row.advantage / divisor * (entropy >= threshold) for entropy in line]
        for row, line, divisor in zip(rows, entropies, _divisors(rows, config), strict=True)
    ]
    # The adaptive bonus starts after the first step.
    coef = 0.0 if config.adaptive_entropy else config.entropy_coef
    return weights, coef / max(kept, 1)


def _divisors(rows: list[TrainingRow], config: GRPOConfig) -> list[float]:
    lengths = [len(row.completion_ids) for row in rows]
    match config.loss_type:
        case "grpo" | "sapo" | "gmpo":
            return [len(rows) * length for length in lengths]
        case "dr_grpo":
            return [len(rows) * config.max_completion_length] * len(rows)
        case "luspo":
            return [len(rows)] * len(rows)
        case _:
            return [sum(lengths)] * len(rows)


def _total(scores: tuple[TokenValues, TokenValues], weights: TokenValues, bonus: float) -> float:
    total = 0.0
    for logprobs, entropies, factors in zip(*scores, weights, strict=True):
        for logprob, entropy, factor in zip(logprobs, entropies, factors, strict=True):
            total += factor * logprob + (bonus * entropy if factor else 0.0)
    return total


def _mean_change(
    rows: list[TrainingRow], before: TokenValues, after: TokenValues, sign: int
) -> float:
    changes = [
        new - old
        for row, olds, news in zip(rows, before, after, strict=True)
        for old, new in zip(olds, news, strict=True)
        if sign * row.advantage > 0
    ]
    return sum(changes) / len(changes)
