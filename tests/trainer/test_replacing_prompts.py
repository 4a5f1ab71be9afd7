"""What must spread in a group that teaches, and which prompts replace those that do not."""

from collections import Counter
from itertools import islice

import pytest

from grpo_protocol import ConfigError, load_config
from grpo_trainer.dynamic_sampling import refill_prompts, spread_metric

# --- what must spread


def metric(name: str | None, names: list[str], *weights: float) -> str:
    settings = {} if name is None else {"dynamic_sampling_metric": name}
    return spread_metric(load_config({"dynamic_sampling": True, **settings}), names, weights)


@pytest.mark.parametrize(
    ("weights", "chosen"),
    [
        ((1.0, 1.0, 1.0), "format"),
        ((0.1, 1.0, 0.5), "exact"),
        ((0.5, 1.0, 1.0), "exact"),
        ((0.5, 1.0, -2.0), "length"),
    ],
)
def test_the_function_that_weighs_most_must_spread(weights: tuple[float, ...], chosen: str) -> None:
    assert metric(None, ["format", "exact", "length"], *weights) == chosen


@pytest.mark.parametrize("name", ["format", "exact", "reward"])
def test_the_metric_can_be_named(name: str) -> None:
    assert metric(name, ["format", "exact"], 0.1, 1.0) == name


@pytest.mark.parametrize("name", ["exct", "rewards", ""])
def test_a_metric_that_is_no_reward_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        metric(name, ["format", "exact"], 0.1, 1.0)
    message = str(caught.value)
    assert "\n" not in message
    assert f"dynamic_sampling_metric={name!r}" in message
    assert "format, exact, or reward" in message


# --- what is sampled instead


def refill(
    count: int, num_prompts: int, *, skip: list[int], seed: int = 1, step: int = 7
) -> list[int]:
    return list(islice(refill_prompts(num_prompts, seed, step, skip), count))


def test_every_other_prompt_is_given_before_those_of_the_step() -> None:
    first = refill(50, 50, skip=[3, 41, 3, 7])
    assert sorted(first) == list(range(50))
    assert sorted(first[-3:]) == [3, 7, 41]


def test_after_the_dataset_all_prompts_come_in_a_new_order() -> None:
    rows = refill(150, 50, skip=[3, 7])
    passes = [rows[:50], rows[50:100], rows[100:]]
    assert Counter(rows) == dict.fromkeys(range(50), 3)
    assert len({tuple(order) for order in passes}) == 3


def test_the_order_is_derived_from_seed_and_step() -> None:
    order = refill(120, 50, skip=[])
    assert order == refill(120, 50, skip=[])
    assert order[:50] != list(range(50))
    others = [refill(50, 50, skip=[], seed=2), refill(50, 50, skip=[], step=8)]
    assert all(other != order[:50] for other in others)


def test_what_the_step_sampled_changes_nothing_else_in_the_order() -> None:
    order = refill(50, 50, skip=[])
    skipping = refill(50, 50, skip=[3, 41])
    assert skipping[:48] == [row for row in order if row not in (3, 41)]


def test_a_dataset_that_the_step_sampled_whole_is_given_again() -> None:
    assert sorted(refill(3, 3, skip=[0, 1, 2])) == [0, 1, 2]
    assert refill(3, 1, skip=[0]) == [0, 0, 0]


def test_every_prompt_is_as_likely_to_come_first() -> None:
    first = Counter(refill(1, 4, skip=[], step=step)[0] for step in range(400))
    assert all(70 < first[row] < 130 for row in range(4)), first


def test_an_empty_dataset_is_refused_and_does_not_search_for_ever() -> None:
    with pytest.raises(ValueError, match="num_prompts=0"):
        refill_prompts(0, 1, 1, [])
