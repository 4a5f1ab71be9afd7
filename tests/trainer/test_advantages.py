"""Rewards to advantages, against the numbers of TRL's own code."""

import math
import random
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from grpo_protocol import load_config
from grpo_protocol.settings.grpo import ScaleRewards
from grpo_trainer.advantages import Advantages, advantages_of, compute_advantages, gdpo_advantages
from grpo_trainer.rewards.calling import Score
from grpo_trainer.rewards.types import combine

Floats = npt.NDArray[np.float64]

SCALES: tuple[ScaleRewards, ...] = ("group", "batch", "none")
GDPO = {"multi_objective_aggregation": "normalize_then_sum"}
MODES: list[dict[str, Any]] = [*({"scale_rewards": scale} for scale in SCALES), GDPO]

REWARDS: list[Score] = [1, 0, 0, 1, 2, 2, 2, 2, 0, 1, 3, None]

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

TWO_REWARDS: dict[str, list[Score]] = {
    "right": [1, 0, 0, 1, 0, 0, 0, 1],
    "short": [0.2, 0.4, 0.1, 0.3, 5, 1, 2, 0],
}
GOLDEN_GDPO = [
    *(0.748631, -0.317742, -1.610407, 1.179519),
    *(0.216484, -0.814286, -0.556594, 1.154397),
]

ABSTAINING: dict[str, list[Score]] = {"a": [1, None, None, 0], "b": [None, None, 0.5, None]}


def compare(
    per_function: Mapping[str, list[Score]], *weights: float, **settings: Any
) -> Advantages:
    """Advantages under `settings`; four answers to a prompt where they say nothing else."""
    return advantages_of(combine(per_function, weights), weights, load_config(settings))


@pytest.mark.parametrize("scale", SCALES)
def test_golden_values_of_trl(scale: ScaleRewards) -> None:
    found = compute_advantages(REWARDS, 4, scale)
    assert found.values == pytest.approx(list(chain(*GOLDEN[scale])), abs=1e-5)
    assert found.zero_spread == [False, True, False]


def test_golden_values_of_gdpo() -> None:
    found = gdpo_advantages(TWO_REWARDS, [1, 0.5], 4)
    assert found.values == pytest.approx(GOLDEN_GDPO, abs=1e-5)
    assert found.zero_spread == [False, False]


# --- the settings that choose


@pytest.mark.parametrize("scale", SCALES)
def test_the_sum_of_the_rewards_is_scaled_as_the_setting_says(scale: ScaleRewards) -> None:
    found = compare({"a": REWARDS}, 1.0, scale_rewards=scale)
    assert found.values == pytest.approx(list(chain(*GOLDEN[scale])), abs=1e-5)


def test_without_normalization_advantages_are_centred_only() -> None:
    found = compare({"a": REWARDS}, 1.0, advantage_normalization=False)
    assert found.values == pytest.approx(list(chain(*GOLDEN["none"])), abs=1e-12)
    assert found.zero_spread == [False, True, False]


def test_the_default_compares_the_weighted_sum_within_the_group() -> None:
    halves = {"a": [None if r is None else r / 2 for r in REWARDS], "b": REWARDS}
    found = compare(halves, 1.0, 0.5)
    assert found.values == pytest.approx(list(chain(*GOLDEN["group"])), abs=1e-5)


def test_normalize_then_sum_is_gdpo() -> None:
    found = compare(TWO_REWARDS, 1, 0.5, **GDPO)
    assert found.values == pytest.approx(GOLDEN_GDPO, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group_size", [2, 8])
def test_the_group_size_is_that_of_the_settings(group_size: int, mode: dict[str, Any]) -> None:
    found = compare(TWO_REWARDS, 1, 1, group_size=group_size, **mode)
    assert len(found.zero_spread) == 8 // group_size


# --- against a second implementation, on arrays


def z_scores_PG(rewards_PG: Floats, spread: Any) -> Floats:
    mean_P1 = np.nanmean(rewards_PG, axis=1, keepdims=True)
    scores_PG: Floats = (rewards_PG - mean_P1) / (spread + 1e-4)
    return scores_PG


def on_arrays(rewards_PG: Floats, scale: ScaleRewards) -> list[float]:
    spread = {
        "group": np.nanstd(rewards_PG, axis=1, ddof=1, keepdims=True),
        "batch": np.nanstd(rewards_PG, ddof=1),
        "none": 1 - 1e-4,
    }[scale]
    return [float(a) for a in np.nan_to_num(z_scores_PG(rewards_PG, spread)).ravel()]


def gdpo_on_arrays(rewards_KPG: Floats, weights_K: Floats) -> list[float]:
    """Subtracts the mean of the batch, as the formula is written."""
    spread_KPG = np.nanstd(rewards_KPG, axis=2, ddof=1, keepdims=True)
    z_KPG = np.stack([z_scores_PG(r, s) for r, s in zip(rewards_KPG, spread_KPG, strict=True)])
    sums_PG = np.nansum(weights_K[:, None, None] * z_KPG, axis=0)
    sums_PG[np.isnan(rewards_KPG).all(axis=0)] = np.nan
    found_PG = (sums_PG - np.nanmean(sums_PG)) / (np.nanstd(sums_PG, ddof=1) + 1e-4)
    return [float(a) for a in np.nan_to_num(found_PG).ravel()]


def random_rewards_KPG(seed: int, num_functions: int) -> Floats:
    """Six groups of five. Two answers of each have every reward, and one answer has none at all."""
    generator = np.random.default_rng(seed)
    rewards_KPG: Floats = generator.normal(size=(num_functions, 6, 5)) * 10.0 ** (seed - 2)
    missing_KPG = generator.random(rewards_KPG.shape) < 0.4
    missing_KPG[:, :, :2] = False
    missing_KPG[:, 0, 4] = True
    rewards_KPG[missing_KPG] = np.nan
    return rewards_KPG


def column(rewards_PG: Floats) -> list[Score]:
    return [None if math.isnan(r) else float(r) for r in rewards_PG.ravel()]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", SCALES)
def test_random_rewards_with_gaps_compare_as_on_arrays(scale: ScaleRewards, seed: int) -> None:
    (rewards_PG,) = random_rewards_KPG(seed, 1)
    found = compute_advantages(column(rewards_PG), 5, scale)
    assert found.values == pytest.approx(on_arrays(rewards_PG, scale), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_random_rewards_with_gaps_compare_as_on_arrays_in_gdpo(seed: int) -> None:
    rewards_KPG, weights = random_rewards_KPG(seed, 3), [1.0, -0.5, 3.0]
    per_function = {f"f{k}": column(rewards_PG) for k, rewards_PG in enumerate(rewards_KPG)}
    found = gdpo_advantages(per_function, weights, 5)
    assert found.values == pytest.approx(gdpo_on_arrays(rewards_KPG, np.array(weights)), abs=1e-9)


# --- what rounding must not do


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offset", [1e8, -1e8])
@pytest.mark.parametrize("spread", [1.0, 2.0**-10])
def test_a_large_common_offset_does_not_drown_the_spread(
    mode: dict[str, Any], offset: float, spread: float
) -> None:
    plain, shifted = (
        compare({"a": [start + spread * r for r in (0.0, 0.25, 0.5, 1.0)]}, 1, **mode)
        for start in (0.0, offset)
    )
    assert any(plain.values)
    assert shifted.values == pytest.approx(plain.values, abs=1e-5)
    assert shifted.zero_spread == [False]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reward", [1.0, 0.1, -7.5, 1e8, 1 / 3])
def test_M01_equal_rewards_give_exactly_zero(mode: dict[str, Any], reward: float) -> None:
    """0.1 three times has a mean that rounding moves off 0.1."""
    found = compare({"a": [*[reward] * 3, 0.1, 0.7, 1 / 3]}, 1, group_size=3, **mode)
    assert found.values[:3] == [0.0, 0.0, 0.0]
    assert all(found.values[3:])
    assert found.zero_spread == [True, False]
    only = compare({"a": [reward] * 7}, 1, group_size=7, **mode)
    assert only.values == [0.0] * 7
    assert only.zero_spread == [True]


@pytest.mark.parametrize("mode", MODES)
def test_M01_rewards_that_differ_by_rounding_are_equal(mode: dict[str, Any]) -> None:
    rewards: list[Score] = [0.1 + 0.2, 0.3, 0.3, 0.0, 0.1 + 0.2 - 0.3, 0.0]
    found = compare({"a": rewards}, 1, group_size=3, **mode)
    assert found.values == [0.0] * 6
    assert found.zero_spread == [True, True]


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_answers_and_prompts_does_not_matter(mode: dict[str, Any]) -> None:
    columns = [column(rewards_PG) for rewards_PG in random_rewards_KPG(1, 2)]

    def by_place(places: Sequence[int]) -> list[float]:
        moved = {f"f{k}": [rewards[place] for place in places] for k, rewards in enumerate(columns)}
        values = compare(moved, 1.0, 0.3, group_size=5, **mode).values
        return [value for _, value in sorted(zip(places, values, strict=True))]

    generator = random.Random(3)
    groups = [generator.sample(range(start, start + 5), 5) for start in range(0, 30, 5)]
    mixed = list(chain(*generator.sample(groups, 6)))
    assert mixed != list(range(30))
    assert by_place(mixed) == by_place(range(30))


# --- several rewards


def test_in_gdpo_one_function_with_spread_is_a_signal() -> None:
    found = gdpo_advantages({"a": [1.0, 1.0], "b": [0.0, 1.0]}, [1.0, 1.0], 2)
    assert found.values == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=2e-4)
    assert found.zero_spread == [False]


def test_in_gdpo_a_group_that_is_flat_in_every_function_is_exactly_zero() -> None:
    shifted: list[Score] = [0.1 + 0.2, 0.3, None, 0.9]
    found = gdpo_advantages({"a": [0.1, 0.1, 0.0, 0.7], "b": shifted}, [1.0, 0.3], 2)
    assert found.values[:2] == [0.0, 0.0]
    assert all(found.values[2:])
    assert found.zero_spread == [True, False]


def test_in_gdpo_a_function_without_weight_is_no_signal() -> None:
    found = gdpo_advantages({"a": [1.0, 1.0], "watched": [0.0, 1.0]}, [1.0, 0.0], 2)
    assert found.values == [0.0, 0.0]
    assert found.zero_spread == [True]


# --- rows without reward


@pytest.mark.parametrize("scale", SCALES)
def test_M04_rows_without_reward_get_zero_and_take_no_part(scale: ScaleRewards) -> None:
    found = compute_advantages([None, 1.0, None, 0.0], 4, scale)
    divisor = 1.0 if scale == "none" else math.sqrt(0.5) + 1e-4
    assert found.values == pytest.approx([0, 0.5 / divisor, 0, -0.5 / divisor])
    assert found.values[0] == found.values[2] == 0.0


def test_M04_functions_that_abstain_in_turn_are_compared_by_what_they_gave() -> None:
    found = compare(ABSTAINING, 1, 1)
    divisor = 0.5 + 1e-4
    assert found.values == pytest.approx([0.5 / divisor, 0, 0, -0.5 / divisor])


def test_M04_in_gdpo_a_function_that_abstains_takes_no_part() -> None:
    """`b` scores one row, so it has no spread; the row without score is in no statistics."""
    found = compare(ABSTAINING, 1, 1, **GDPO)
    z = 0.5 / (math.sqrt(0.5) + 1e-4)
    divisor = math.sqrt((z**2 + 0 + z**2) / 2) + 1e-4
    assert found.values == pytest.approx([z / divisor, 0, 0, -z / divisor])
    assert found.values[1:3] == [0.0, 0.0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rewards", [[None, None, None, 1.0], [None] * 4])
def test_M04_a_single_survivor_and_none_at_all_are_no_signal(
    rewards: list[Score], mode: dict[str, Any]
) -> None:
    """Beside a group that has a signal, and alone."""
    found = compare({"a": [*rewards, 0.0, 1.0, 2.0, 3.5]}, 1, **mode)
    assert found.values[:4] == [0.0] * 4
    assert all(found.values[4:])
    alone = compare({"a": rewards, "b": rewards}, 1, 1, **mode)
    assert alone.values == [0.0] * 4
    assert alone.zero_spread == [True]


# --- what does not fit


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_is_no_whole_number_of_groups_is_refused(mode: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="5 rewards are no multiple of group_size=4"):
        compare({"a": [1.0] * 5}, 1, **mode)


def test_in_gdpo_weights_and_columns_have_to_fit() -> None:
    with pytest.raises(ValueError, match="longer"):
        gdpo_advantages({"a": [1.0] * 4, "b": [1.0] * 4}, [1.0], 4)
    with pytest.raises(ValueError, match="longer"):
        gdpo_advantages({"a": [1.0] * 4, "b": [1.0] * 8}, [1.0, 1.0], 4)
