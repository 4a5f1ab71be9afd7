"""From rewards to advantages: how much better an answer is than the others of its prompt.

Formulas as in TRL's GRPO trainer: centred within the group, scaled by the Bessel-corrected standard
deviation plus 1e-4. Computed in float64 with two passes, so that a large common offset of the
rewards does not drown their spread. Shapes: P prompts, G answers each, B = P·G rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_protocol.config import ScaleRewards
from grpo_trainer.summary import mean_of as mean_of
from grpo_trainer.summary import sample_std as sample_std

EPSILON = 1e-4


@dataclass(frozen=True)
class Advantages:
    """Advantage of each row, and what the rewards said about the groups."""

    values: list[float]
    """[B]; exactly 0 for a row without reward and for every row of a group without spread."""
    zero_spread: list[bool]
    """[P]; groups whose answers all got the same reward, from which nothing can be learned."""

    @property
    def has_signal(self) -> bool:
        return any(self.values)

    @property
    def frac_zero_std(self) -> float:
        return sum(self.zero_spread) / len(self.zero_spread) if self.zero_spread else 0.0


def compute_advantages(
    rewards: Sequence[float | None], group_size: int, scale: ScaleRewards = "group"
) -> Advantages:
    """Advantages of `rewards` [B], whose consecutive `group_size` entries answer one prompt.

    A row whose reward is `None` takes no part in mean and spread. Raises `ValueError` when the rows
    are no whole number of groups.
    """
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards are no multiple of group_size={group_size}")
    groups = [rewards[i : i + group_size] for i in range(0, len(rewards), group_size)]
    batch_std = sample_std([r for r in rewards if r is not None])
    values: list[float] = []
    zero_spread: list[bool] = []
    for group in groups:
        known = [r for r in group if r is not None]
        flat = len(set(known)) <= 1
        zero_spread.append(flat)
        spread = {"group": sample_std(known), "batch": batch_std, "none": None}[scale]
        divisor = 1.0 if spread is None else spread + EPSILON
        mean = mean_of(known)
        values += [0.0 if flat or r is None else (r - mean) / divisor for r in group]
    return Advantages(values, zero_spread)
