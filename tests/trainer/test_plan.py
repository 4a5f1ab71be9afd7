"""Which prompts each step takes, and which steps share a rollout: known from its number alone."""

import itertools
from collections import Counter
from typing import Any

import pytest

from grpo_protocol import GRPOConfig
from grpo_trainer import plan as plan_module
from grpo_trainer.dataset import epoch_order
from grpo_trainer.plan import TrainingPlan

SIZES = [1, 7, 8, 13]
SHAPES: list[dict[str, Any]] = [
    {},
    {"batch_size": 2, "gradient_accumulation_steps": 2},
    {"batch_size": 2, "num_iterations": 3},
    {"batch_size": 2, "steps_per_generation": 3},
    {"batch_size": 2, "steps_per_generation": 3, "num_iterations": 2},
    {
        "batch_size": 1,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 3,
    },
]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
sizes = pytest.mark.parametrize("num_prompts", SIZES)


def plan(num_prompts: int = 7, **settings: object) -> TrainingPlan:
    return TrainingPlan(num_prompts, GRPOConfig(**settings))  # type: ignore[arg-type]


def test_an_epoch_takes_every_prompt_once_and_the_rest_makes_a_smaller_step() -> None:
    steps = list(plan(batch_size=2, gradient_accumulation_steps=2, num_epochs=2).steps())
    assert [len(step.prompts) for step in steps] == [4, 3, 4, 3]
    for epoch in (steps[:2], steps[2:]):
        assert sorted(itertools.chain(*(step.prompts for step in epoch))) == list(range(7))
    assert [(s.number, s.epoch, s.in_epoch) for s in steps] == [
        (1, 0, 1),
        (2, 0, 2),
        (3, 1, 1),
        (4, 1, 2),
    ]


def test_each_epoch_has_an_order_of_its_own_unless_shuffling_is_off() -> None:
    steps = list(plan(num_epochs=3, batch_size=7).steps())
    assert len({tuple(step.prompts) for step in steps}) == 3
    for step in plan(num_epochs=2, batch_size=7, shuffle=False).steps():
        assert step.prompts == list(range(7))


def test_the_order_depends_on_the_seed() -> None:
    first, second = (next(plan(batch_size=7, seed=seed).steps()).prompts for seed in (1, 2))
    assert first != second
    assert first == next(plan(batch_size=7, seed=1).steps()).prompts


@pytest.mark.parametrize("max_steps", [1, 5, 11])
def test_max_steps_wins_over_epochs(max_steps: int) -> None:
    made = plan(batch_size=2, max_steps=max_steps, num_epochs=3)
    steps = list(made.steps())
    assert len(steps) == made.total_steps == max_steps
    assert made.total_epochs == -(-max_steps // 4)
    assert steps[-1].epoch + 1 == made.total_epochs


def test_the_epoch_after_a_step_is_that_of_the_next_one() -> None:
    made = plan(batch_size=2, num_epochs=2)
    assert [made.epoch_of(step) for step in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 1]


# --- windows


def test_a_window_is_gone_through_as_often_as_iterations_say() -> None:
    """Seven prompts, two a step, three steps a window: the fourth step is alone in the second."""
    made = plan(batch_size=2, steps_per_generation=3, num_iterations=2, shuffle=False)
    steps = list(made.steps())
    pairs, rest = [[0, 1], [2, 3], [4, 5]], [[6]]
    assert [step.prompts for step in steps] == [*pairs, *pairs, *rest, *rest]
    assert [step.iteration for step in steps] == [0, 0, 0, 1, 1, 1, 0, 1]
    assert [step.number for step in steps if step.samples] == [1, 7]
    assert steps[3].window.prompts == [0, 1, 2, 3, 4, 5]
    assert steps[7].window.prompts == [6]


def test_without_a_setting_a_window_is_what_one_step_trains_on() -> None:
    made = plan(batch_size=1, gradient_accumulation_steps=2)
    assert all(step.samples and step.window.mini_batches == [step.prompts] for step in made.steps())
    assert not any(step.window.is_reused for step in made.steps())


@shapes
@sizes
def test_M30_each_prompt_is_trained_on_as_often_as_asked_in_every_epoch(
    num_prompts: int, shape: dict[str, Any]
) -> None:
    made = plan(num_prompts, num_epochs=2, **shape)
    steps = list(made.steps())
    assert len(steps) == made.total_steps == 2 * made.steps_per_epoch
    iterations = shape.get("num_iterations", 1)
    for epoch in range(2):
        seen = Counter(row for step in steps if step.epoch == epoch for row in step.prompts)
        assert seen == dict.fromkeys(range(num_prompts), iterations)


@shapes
@sizes
def test_windows_follow_one_another_and_never_span_epochs(
    num_prompts: int, shape: dict[str, Any]
) -> None:
    made = plan(num_prompts, num_epochs=2, **shape)
    most = shape.get("steps_per_generation", 1) // shape.get("gradient_accumulation_steps", 1) or 1
    windows = [
        list(steps)
        for _, steps in itertools.groupby(made.steps(), lambda step: step.window.first_step)
    ]
    for steps in windows:
        window = steps[0].window
        assert all(step.window == window for step in steps)
        assert [step.samples for step in steps] == [True] + [False] * (len(steps) - 1)
        assert window.first_step == steps[0].number
        assert len({step.epoch for step in steps}) == 1
        assert [(step.iteration, step.mini_batch) for step in steps] == list(
            itertools.product(range(window.iterations), range(len(window.mini_batches)))
        )
        is_last_of_epoch = steps[-1].in_epoch == made.steps_per_epoch
        assert len(window.mini_batches) == most or is_last_of_epoch
        assert window.is_reused == (len(steps) > 1)


def test_rollouts_are_reused_when_a_window_feeds_more_steps_than_one() -> None:
    assert not GRPOConfig().reuses_rollouts
    assert not GRPOConfig(gradient_accumulation_steps=4, steps_per_generation=4).reuses_rollouts
    assert GRPOConfig(gradient_accumulation_steps=2, steps_per_generation=4).reuses_rollouts
    assert GRPOConfig(num_iterations=2).reuses_rollouts


# --- from the middle


@shapes
def test_W08_W09_W10_what_remains_after_a_resume_is_what_would_have_come(
    shape: dict[str, Any],
) -> None:
    made = plan(num_epochs=2, **shape)
    steps = list(made.steps())
    for done in range(made.total_steps + 1):
        assert list(made.steps(done)) == steps[done:]
        if done < made.total_steps:
            assert made.starts_window(done) == steps[done].samples


@shapes
def test_a_longer_run_begins_as_the_shorter_one(shape: dict[str, Any]) -> None:
    """So that what ended in the middle of a window can be gone on with."""
    longer = list(plan(max_steps=20, **shape).steps())
    for max_steps in range(1, 20):
        shorter = plan(max_steps=max_steps, **shape)
        assert list(shorter.steps()) == longer[:max_steps]
        assert shorter.step_after(max_steps) == longer[max_steps]
        assert shorter.starts_window(max_steps) == longer[max_steps].samples


def test_an_epoch_is_put_in_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def listen(n: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
        asked.append(epoch)
        return epoch_order(n, seed, epoch, shuffle)

    monkeypatch.setattr(plan_module, "epoch_order", listen)
    plan_module._order.cache_clear()
    made = plan(11, num_epochs=2)
    for step in made.steps():
        made.starts_window(step.number)
    assert asked == [0, 1, 2]
