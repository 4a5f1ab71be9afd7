"""Rewards to advantages, against the numbers of TRL's own code."""

import math
from itertools import chain

import pytest

from grpo_protocol.config import ScaleRewards
from grpo_trainer.advantages import compute_advantages

REWARDS: list[float | None] = [1, 0, 0, 1, 2, 2, 2, 2, 0, 1, 3, None]


GOLDEN: dict[ScaleRewards, list[list[float]]] = {
    "group": [
        [0.865875, -0.865875, -0.865875, 0.865875],
        [0, 0, 0, 0],
        [-0.872814, -0.218204, 1.091018, 0],
    ],
    "batch": [
        [0.495467, -0.495467, -0.495467, 0.495467],
        [0, 0, 0, 0],
        [-1.321244, -0.330311, 1.651555, 0],
    ],
    "none": [[0.5, -0.5, -0.5, 0.5], [0, 0, 0, 0], [-4 / 3, -1 / 3, 5 / 3, 0]],
}


@pytest.mark.parametrize("scale", GOLDEN)
def test_golden_values_of_trl(scale: ScaleRewards) -> None:
    found = compute_advantages(REWARDS, 4, scale)
    assert found.values == pytest.approx(list(chain(*GOLDEN[scale])), abs=1e-5)
    assert found.zero_spread == [False, True, False]
    assert found.frac_zero_std == pytest.approx(1 / 3)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("offset", [1e8, -1e8])
def test_a_large_common_offset_does_not_drown_the_spread(
    scale: ScaleRewards, offset: float
) -> None:
    plain = compute_advantages([0.0, 0.25, 0.5, 1.0], 4, scale)
    shifted = compute_advantages([offset + r for r in (0.0, 0.25, 0.5, 1.0)], 4, scale)
    assert shifted.values == pytest.approx(plain.values, abs=1e-5)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("reward", [0.1, -7.5, 1e8, 1 / 3])
def test_M01_equal_rewards_give_exactly_zero(scale: ScaleRewards, reward: float) -> None:
    """0.1 three times has a mean that rounding moves off 0.1."""
    found = compute_advantages([reward] * 3 + [0.0, 1.0, 2.0], 3, scale)
    assert found.values[:3] == [0.0, 0.0, 0.0]
    assert found.zero_spread == [True, False]
    only = compute_advantages([reward] * 7, 7, scale)
    assert only.values == [0.0] * 7
    assert not only.has_signal
    assert only.frac_zero_std == 1.0


def test_M04_rows_without_reward_get_zero_and_take_no_part() -> None:
    found = compute_advantages([None, 1.0, None, 0.0], 4)
    assert found.values[0] == found.values[2] == 0.0
    assert found.values[1] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4))
    assert found.has_signal


@pytest.mark.parametrize("rewards", [[None, None, None, 1.0], [None] * 4])
def test_M04_a_single_survivor_and_none_at_all_are_no_signal(rewards: list[float | None]) -> None:
    found = compute_advantages(rewards, 4)
    assert found.values == [0.0] * 4
    assert not found.has_signal


def test_a_batch_that_is_no_whole_number_of_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="5 rewards are no multiple of group_size=4"):
        compute_advantages([1.0] * 5, 4)
