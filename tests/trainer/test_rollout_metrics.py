"""What is told of a step's rollouts, against numbers computed by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from grpo_trainer.rollout_batch import MiniBatch, ScoredGroup
from grpo_trainer.rollout_metrics import describe_rollouts
from grpo_trainer.training_rows import TrainingRow
from scored_groups import group, rollout_batch


def mini_batch_of(
    *groups: tuple[ScoredGroup, Sequence[float | None]], discarded: Sequence[ScoredGroup] = ()
) -> MiniBatch:
    """A mini-batch with these advantages, None for a row that is left out."""
    judged = [replace(one, advantages=list(advantages)) for one, advantages in groups]
    known = [a for one in judged for a in one.advantages if a is not None]
    rows = [TrainingRow([1], [2], advantage) for advantage in known]
    return MiniBatch(judged, [rows] if rows else [], list(discarded))


def describe(mini_batch: MiniBatch, rounds: int = 1) -> dict[str, float | None]:
    return describe_rollouts(rollout_batch(mini_batch, rounds=rounds), mini_batch)


def test_rewards_are_of_all_completions_and_leave_out_unknown_ones() -> None:
    parts: dict[str, list[float | None]] = {
        "exact": [1, None, 0, None],
        "form": [None, None, 0.5, 1.5],
    }
    metrics = describe(mini_batch_of((group(0, [1, None, 0.5, 1.5], parts=parts), [0.1, 0, -1, 2])))
    expected = {
        "reward": 1.0,
        "reward_std": 0.5,
        "reward_coverage": 0.75,
        "rewards/exact/mean": 0.5,
        "rewards/exact/std": math.sqrt(0.5),
        "rewards/exact/coverage": 0.5,
        "rewards/form/mean": 1.0,
        "rewards/form/std": math.sqrt(0.5),
        "rewards/form/coverage": 0.5,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_the_spread_is_that_of_the_batch_not_the_mean_of_the_groups() -> None:
    metrics = describe(mini_batch_of((group(0, [0, 0]), [0, 0]), (group(1, [2, 2]), [0, 0])))
    assert metrics["reward_std"] == pytest.approx(math.sqrt(4 / 3))


@pytest.mark.parametrize("name", ["reward", "reward_std", "rewards/score/mean"])
def test_without_any_score_means_are_unknown(name: str) -> None:
    metrics = describe(mini_batch_of((group(0, [None, None]), [0, 0])))
    assert metrics[name] is None
    assert metrics["reward_coverage"] == metrics["rewards/score/coverage"] == 0.0


def test_advantages_are_of_the_completions_that_are_trained_on() -> None:
    metrics = describe(mini_batch_of((group(0, [0, 1, 2, 9]), [-1.5, 0.0, 3.0, None])))
    assert [metrics[f"advantages/{kind}"] for kind in ("mean", "min", "max")] == [0.5, -1.5, 3.0]
    assert metrics["completions/trained_ratio"] == 0.75


def test_M22_where_all_are_left_out_there_is_no_advantage() -> None:
    metrics = describe(mini_batch_of((group(0, [0, 1], "ll"), [None, None])))
    assert [metrics[f"advantages/{kind}"] for kind in ("mean", "min", "max")] == [None] * 3
    assert metrics["completions/trained_ratio"] == 0.0
    assert metrics["completions/clipped_ratio"] == 1.0
    assert metrics["reward"] == 0.5


def test_lengths_are_of_all_and_of_those_that_ended() -> None:
    metrics = describe(
        mini_batch_of((group(0, [0] * 5, "slrss", [2, 9, 7, 4, 3]), [0] * 5)),
    )
    expected = {
        "completions/mean_length": 5.0,
        "completions/min_length": 2.0,
        "completions/max_length": 9.0,
        "completions/mean_terminated_length": 3.0,
        "completions/min_terminated_length": 2.0,
        "completions/max_terminated_length": 4.0,
        "completions/clipped_ratio": 0.4,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_where_none_ended_the_length_of_those_that_did_is_zero() -> None:
    metrics = describe(mini_batch_of((group(0, [0, 0], "ll", [9, 9]), [0, 0])))
    names = [f"completions/{kind}_terminated_length" for kind in ("mean", "min", "max")]
    assert [metrics[name] for name in names] == [0.0] * 3


def test_M01_the_share_of_groups_without_spread() -> None:
    flat, other = replace(group(0, [1, 1]), has_spread=False), group(1, [0, 1])
    assert describe(mini_batch_of((flat, [0, 0]), (other, [-1, 1])))["frac_reward_zero_std"] == 0.5
    assert describe(mini_batch_of((flat, [0, 0])))["frac_reward_zero_std"] == 1.0
    assert describe(mini_batch_of((other, [-1, 1])))["frac_reward_zero_std"] == 0.0


def test_the_effective_batch_of_dynamic_sampling() -> None:
    """Discarded groups were sampled too: they count in the means, and what was kept is apart."""
    discarded = [replace(group(n, [5, 5]), has_spread=False) for n in (2, 3, 4)]
    mini_batch = mini_batch_of((group(1, [0, 1], lengths=[3, 3]), [-1, 1]), discarded=discarded)
    metrics = describe(mini_batch, rounds=3)
    expected = {
        "dynamic_sampling/rounds": 3.0,
        "dynamic_sampling/kept_groups": 1.0,
        "dynamic_sampling/discarded_groups": 3.0,
        "dynamic_sampling/kept_reward": 0.5,
        "frac_reward_zero_std": 0.75,
        "reward": (0 + 1 + 6 * 5) / 8,
        "rewards/score/mean": (0 + 1 + 6 * 5) / 8,
        "completions/trained_ratio": 0.25,
    }
    assert {name: metrics[name] for name in expected} == expected


def test_what_cut_a_completion_is_told_apart() -> None:
    metrics = describe(mini_batch_of((group(0, [0] * 4, "slrr"), [0] * 4)))
    assert metrics["completions/clipped_ratio"] == 0.75
    assert metrics["completions/repetition_ratio"] == 0.5


def test_without_dynamic_sampling_nothing_is_told_of_it() -> None:
    metrics = describe(mini_batch_of((group(0, [0, 1]), [-1, 1])))
    assert not [name for name in metrics if name.startswith("dynamic_sampling/")]


def test_of_a_step_without_any_group_nothing_is_known() -> None:
    metrics = describe(MiniBatch([], [], []), rounds=3)
    known = {name: value for name, value in metrics.items() if value is not None}
    assert set(known) == {
        "dynamic_sampling/rounds",
        "dynamic_sampling/kept_groups",
        "dynamic_sampling/discarded_groups",
    }
