"""Which prompts each step takes: known from its number alone."""

import itertools

import pytest

from grpo_protocol import GRPOConfig
from grpo_trainer.plan import TrainingPlan


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


@pytest.mark.parametrize("done", range(9))
def test_W08_W09_W10_what_remains_after_a_resume_is_what_would_have_come(done: int) -> None:
    made = plan(batch_size=2, num_epochs=2)
    assert list(made.steps(done)) == list(made.steps())[done:]


def test_the_epoch_after_a_step_is_that_of_the_next_one() -> None:
    made = plan(batch_size=2, num_epochs=2)
    assert [made.epoch_of(step) for step in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
