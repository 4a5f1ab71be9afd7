"""From rewards to advantages: how much better an answer is than the others of its prompt.

Formulas as in TRL's GRPO trainer: centred within the group, scaled by the Bessel-corrected standard
deviation plus 1e-4. Computed in float64 with two passes, so that a large common offset of the
rewards does not drown their spread. Shapes: P prompts, G answers each, B = P·G rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from grpo_protocol import GRPOConfig
from grpo_protocol.settings.grpo import ScaleRewards
from grpo_trainer.rewards.types import RewardScores
from grpo_trainer.summary import has_spread, mean_of, sample_std

EPSILON = 1e-4


@dataclass(frozen=True)
class Advantages:
    """Advantage of each row, and what the rewards said about the groups."""

    values: list[float]
    """[B]; exactly 0 for a row without reward and for every row of a group without spread."""
    zero_spread: list[bool]
    """[P]; groups whose answers all got the same reward, from which nothing can be learned."""


def advantages_of(scores: RewardScores, weights: Sequence[float], config: GRPOConfig) -> Advantages:
    """Advantages of `scores`, compared as `config` says; one weight for each reward function.

    Raises `ValueError` when rows are no whole number of groups, or weights do not fit.
    """
    if config.multi_objective_aggregation == "normalize_then_sum":
        return gdpo_advantages(scores.per_function, weights, config.group_size)
    scale = config.scale_rewards if config.advantage_normalization else "none"
    return compute_advantages(scores.total, config.group_size, scale)


def compute_advantages(
    rewards: Sequence[float | None], group_size: int, scale: ScaleRewards = "group"
) -> Advantages:
    """Advantages of `rewards` [B], whose consecutive `group_size` entries answer one prompt.

    A row whose reward is `None` takes no part in mean and spread. Raises `ValueError` when the rows
    are no whole number of groups.
    """
    batch_std = sample_std([r for r in rewards if r is not None])
    values: list[float] = []
    zero_spread: list[bool] = []
    for group in _groups(rewards, group_size):
        known = [r for r in group if r is not None]
        flat = not has_spread(known)
        zero_spread.append(flat)
        spread = {"group": sample_std(known), "batch": batch_std, "none": None}[scale]
        divisor = 1.0 if spread is None else spread + EPSILON
        mean = mean_of(known)
        values += [0.0 if flat or r is None else (r - mean) / divisor for r in group]
    return Advantages(values, zero_spread)


def gdpo_advantages(
    per_function: Mapping[str, Sequence[float | None]], weights: Sequence[float], group_size: int
) -> Advantages:
    """Advantages of several rewards [B], each compared within its group before they are summed.

    GDPO (arXiv 2601.05242) as in TRL: z = (r - mean of group) / (std of group + 1e-4) for each
    function, s = sum of w·z, A = (s - mean of batch) / (std of batch + 1e-4). Where a function
    abstains it takes no part in its own statistics nor in the row's sum; a row where all do takes
    no part at all. The z of a function add up to 0 in each group, whoever abstains, so the mean of
    the batch is 0 by algebra; leaving it out is what makes a group without spread exactly 0.

    `zero_spread` marks groups that spread in no function of a weight other than 0. Raises
    `ValueError` when rows are no whole number of groups, or lengths do not agree.
    """
    compared = [compute_advantages(column, group_size) for column in per_function.values()]
    weighted = [
        [weight * z for z in function.values]
        for weight, function in zip(weights, compared, strict=True)
    ]
    sums = [math.fsum(row) for row in zip(*weighted, strict=True)]
    rows = zip(*per_function.values(), strict=True)
    known = [s for s, row in zip(sums, rows, strict=True) if any(r is not None for r in row)]
    divisor = sample_std(known) + EPSILON
    flags = [c.zero_spread for c, w in zip(compared, weights, strict=True) if w != 0]
    num_groups = len(sums) // group_size
    return Advantages(
        [s / divisor for s in sums],
        [all(flag[group] for flag in flags) for group in range(num_groups)],
    )


def _groups(rewards: Sequence[float | None], group_size: int) -> Iterator[Sequence[float | None]]:
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards are no multiple of group_size={group_size}")
    return (rewards[i : i + group_size] for i in range(0, len(rewards), group_size))
