"""From scored groups to rows: who is compared, who is left out, and in what order they come."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from grpo_protocol import GRPOConfig
from grpo_trainer.rollout_batch import ScoredGroup
from grpo_trainer.training_data import (
    dealt,
    micro_batches,
    with_advantages,
    without_advantages,
)
from scored_groups import Rewards, group, prompts

STD = 1e-4


def config_of(**settings: Any) -> GRPOConfig:
    return GRPOConfig(**{"group_size": 4, "max_completion_length": 10, **settings})


def advantages(groups: list[ScoredGroup], **settings: Any) -> list[list[float | None]]:
    judged = with_advantages(groups, [1.0] * len(groups[0].reward_parts), config_of(**settings))
    return [one.advantages for one in judged]


def by_hand(rewards: Sequence[float], among: Sequence[float]) -> list[Any]:
    """Centred and scaled by mean and standard deviation of `among`."""
    mean = sum(among) / len(among)
    std = (sum((r - mean) ** 2 for r in among) / (len(among) - 1)) ** 0.5
    return [pytest.approx((r - mean) / (std + STD)) for r in rewards]


def test_completions_are_compared_within_their_group() -> None:
    found = advantages([group(0, [0, 1, 2, 5]), group(1, [10, 10, 10, 11])])
    assert found == [by_hand(r, r) for r in ([0, 1, 2, 5], [10, 10, 10, 11])]


def test_a_flat_group_is_compared_to_nothing_and_stays() -> None:
    flat, other = with_advantages([group(0, [3] * 4), group(1, [0, 0, 0, 1])], [1.0], config_of())
    assert (flat.has_spread, other.has_spread) == (False, True)
    assert flat.advantages == [0.0] * 4


def test_M04_abstaining_is_worth_nothing_and_is_not_left_out() -> None:
    rewards: Rewards = [1.0, None, 3.0, 8.0]
    (found,) = advantages([group(0, rewards)])
    assert found[1] == 0.0
    assert [found[0], *found[2:]] == by_hand([1, 3, 8], [1, 3, 8])


@pytest.mark.parametrize("rewards", [[None, None, None, 1.0], [None] * 4])
def test_M04_a_single_score_is_compared_to_nothing(rewards: list[float | None]) -> None:
    assert advantages([group(0, rewards)]) == [[0.0] * 4]


# --- completions that did not end


def test_M22_masked_completions_count_as_peers_and_are_left_out() -> None:
    rewards = [0, 1, 2, 5]
    (found,) = advantages([group(0, rewards, "slrs")], mask_truncated_completions=True)
    assert found[1:3] == [None, None]
    assert [found[0], found[3]] == by_hand([0, 5], rewards)


def test_M22_without_the_settings_nothing_is_left_out() -> None:
    (found,) = advantages([group(0, [0, 1, 2, 5], "llll", [10] * 4)])
    assert found == by_hand([0, 1, 2, 5], [0, 1, 2, 5])


def test_W52_degenerate_completions_are_no_peers() -> None:
    (found,) = advantages([group(0, [0, 1, 2, 50], "sssl", [2, 3, 4, 10])], degenerate_filter=True)
    assert found[3] is None
    assert found[:3] == by_hand([0, 1, 2], [0, 1, 2])


def test_W52_a_prompt_without_survivors_costs_only_itself() -> None:
    gone = group(0, [0, 1, 2, 5], "llll", [10] * 4)
    found = advantages([gone, group(1, [0, 0, 3, 4])], degenerate_filter=True)
    assert found == [[None] * 4, by_hand([0, 0, 3, 4], [0, 0, 3, 4])]


def test_W52_the_spread_of_the_batch_is_that_of_survivors() -> None:
    wild = group(0, [0, 1, 900, -900], "ssll", [2, 2, 10, 10])
    found = advantages(
        [wild, group(1, [0, 0, 3, 4])], degenerate_filter=True, scale_rewards="batch"
    )
    survivors = [0, 1, 0, 0, 3, 4]
    mean = sum(survivors) / 6
    std = (sum((r - mean) ** 2 for r in survivors) / 5) ** 0.5
    assert found[0] == [pytest.approx(v / (std + STD)) for v in (-0.5, 0.5)] + [None, None]
    assert found[1] == [pytest.approx((r - 1.75) / (std + STD)) for r in (0, 0, 3, 4)]


def test_W52_each_reward_function_is_compared_among_survivors() -> None:
    """GDPO: the degenerate row's huge values are in no statistic of either function."""
    parts: dict[str, list[float | None]] = {"a": [0, 1, 2, 900], "b": [1, 0, 0, -900]}
    first = group(0, [1, 1, 2, 0], "sssl", [2, 2, 2, 10], parts)
    lone = group(0, [1, 1, 2], parts={"a": [0, 1, 2], "b": [1, 0, 0]})
    gdpo = {"multi_objective_aggregation": "normalize_then_sum"}
    (found,) = advantages([first], degenerate_filter=True, **gdpo)
    (expected,) = advantages([lone], group_size=3, **gdpo)
    assert found == [*map(pytest.approx, expected), None]
    assert any(expected)


def test_W52_a_repeating_completion_is_not_degenerate_however_long_it_is() -> None:
    (found,) = advantages([group(0, [0, 1, 2, 5], "rsss", [10, 3, 4, 5])], degenerate_filter=True)
    assert None not in found


def test_groups_that_were_replaced_teach_nothing() -> None:
    (found,) = without_advantages([group(2, [0, 1])])
    assert (found.prompt, found.has_spread, found.advantages) == (2, False, [None, None])


# --- mini-batches


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([4, 1, 2, 0, 3], [[4, 1], [2, 0], [3]]),
        ([4, 1, 2, 0], [[4, 1], [2], [0]]),
        ([4, 1], [[4], [1], []]),
        ([], [[], [], []]),
    ],
)
def test_groups_are_dealt_out_as_planned_and_missing_ones_are_missed_by_all_steps_alike(
    kept: list[int], expected: list[list[int]]
) -> None:
    found = dealt([group(row, [0, 1]) for row in kept], [2, 2, 1])
    assert [[one.prompt for one in members] for members in found] == expected


# --- rows


def test_rows_are_the_sampled_ids_in_order_with_their_log_probs() -> None:
    groups = [
        replace(group(2, [0, 1]), advantages=[-1.0, 1.0]),
        replace(group(0, [0, 1]), advantages=[0.0, None]),
        replace(group(1, [0, 1]), advantages=[None, 0.25]),
    ]
    batches = micro_batches(groups, prompts(3), config_of(group_size=2, batch_size=1))
    rows = [row for batch in batches for row in batch]
    assert [len(batch) for batch in batches] == [2, 2]
    assert [(row.prompt_ids, row.completion_ids, row.advantage) for row in rows] == [
        ([2, 2, 2], [200], -1.0),
        ([2, 2, 2], [201, 201], 1.0),
        ([0], [0], 0.0),
        ([1, 1], [101, 101], 0.25),
    ]
    assert [row.sampling_logprobs for row in rows] == [[-0.5], [-0.5] * 2, [-0.5], [-0.5] * 2]


def test_a_step_without_rows_has_no_micro_batch() -> None:
    left_out = replace(group(0, [0, 1]), advantages=[None, None])
    assert micro_batches([left_out], prompts(1), config_of(group_size=2)) == []
