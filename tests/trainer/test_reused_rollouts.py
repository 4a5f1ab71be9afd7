"""Rollouts that feed several steps: how often each is used, and at which temperature."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import Applied, Generation, Step
from grpo_trainer.run import Run
from library_runs import Library, Update


def rollouts_of(update: Update) -> list[tuple[int, ...]]:
    """What tells the rows of a step apart: random ids of a random model."""
    return [(*row.prompt_ids, -1, *row.completion_ids) for row in update.rows]


@pytest.mark.parametrize("iterations", [1, 3])
def test_M30_each_rollout_is_trained_on_as_often_as_was_asked(
    tmp_path: Path, iterations: int
) -> None:
    """Windows of two steps with two micro-batches each; 12 prompts are three windows."""
    library = Library(
        tmp_path,
        batch_size=1,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_iterations=iterations,
        max_steps=6 * iterations,
        learning_rate=1e-2,
    )
    library.train([{"prompt": f"{n} + {n} ="} for n in range(12)])
    uses = Counter(use for update in library.updates for use in rollouts_of(update))
    assert len(uses) == 12 * 4
    assert set(uses.values()) == {iterations}
    for update in library.updates:
        assert [len(batch) for batch in update.micro_batches] == [4, 4]
        assert all(row.old_logprobs is not None for row in update.rows)
    told = Counter(event.step for event in library.all(Generation))
    window = 2 * iterations
    news = [start + share for start in range(1, 6 * iterations, window) for share in (0, 1)]
    assert told == dict.fromkeys(news, 8), "told once, with the step that first trains on them"
    recorded = library.query("""SELECT step, count(*) FROM generations JOIN training_steps
                                ON step_id = training_steps.id GROUP BY step ORDER BY step""")
    assert recorded == [(step, 8) for step in news]
    query = "SELECT count(*) FROM training_steps WHERE state = 'done'"
    assert library.query(query) == [(6 * iterations,)]


def test_M30_the_ratio_leaves_one_as_soon_as_the_weights_have_moved(tmp_path: Path) -> None:
    library = Library(tmp_path, num_iterations=3, max_steps=6, learning_rate=1e-2)
    library.train()
    deviations = [step.metrics["ratio/max_deviation"] for step in library.all(Step)]
    ages = [step.metrics["rollout/age"] for step in library.all(Step)]
    assert ages == [0, 1, 2, 0, 1, 2]
    assert all(deviations[fresh] < 1e-4 for fresh in (0, 3))
    assert all(deviations[reused] > 1e-2 for reused in (1, 2, 4, 5))


def test_tokens_are_counted_once_however_often_they_are_trained_on(tmp_path: Path) -> None:
    library = Library(tmp_path, num_iterations=2, max_steps=4)
    library.train()
    steps = library.all(Step)
    told = [
        sum(event.tokens for event in library.all(Generation) if event.step == number)
        for number in range(1, 5)
    ]
    assert [step.total_tokens for step in steps] == told
    assert told[1] == told[3] == 0
    prompt_tokens = [sum(len(row.prompt_ids) for row in update.rows) for update in library.updates]
    first = told[0] + prompt_tokens[0]
    second = first + told[2] + prompt_tokens[2]
    assert [step.metrics["num_tokens"] for step in steps] == [first, first, second, second]


def test_a_temperature_set_within_a_window_holds_from_the_next_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scored at another temperature than they were sampled at, ratios would be far from 1."""
    may_continue = Run.may_continue

    def set_before_step_2(self: Run) -> bool:
        if self.step == 1:
            self._control.receive(b"SET temperature=2.5")
        return may_continue(self)

    monkeypatch.setattr(Run, "may_continue", set_before_step_2)
    library = Library(tmp_path, num_iterations=2, max_steps=4, learning_rate=1e-7)
    library.train()
    (applied,) = library.all(Applied)
    assert (applied.ok, applied.message) == (True, "temperature=2.5")
    assert [update.config.temperature for update in library.updates] == [0.8, 0.8, 2.5, 2.5]
    for step in library.all(Step):
        assert step.metrics["ratio/max_deviation"] < 1e-3
        assert step.metrics["sampling/sampling_logp_difference/max"] < 1e-3
    entropies = [step.metrics["entropy"] for step in library.all(Step)]
    assert entropies[0] == pytest.approx(entropies[1], rel=1e-3)
    assert entropies[2] > entropies[1] + 0.5


def test_other_settings_hold_from_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_continue = Run.may_continue

    def set_before_step_2(self: Run) -> bool:
        if self.step == 1:
            self._control.receive(b"SET learning_rate=0.5")
        return may_continue(self)

    monkeypatch.setattr(Run, "may_continue", set_before_step_2)
    library = Library(tmp_path, num_iterations=2, max_steps=3)
    library.train()
    rates: list[Any] = [step.learning_rate for step in library.all(Step)]
    assert rates == [1e-5, 0.5, 0.5]
