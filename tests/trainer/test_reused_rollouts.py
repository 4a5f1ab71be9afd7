"""Rollouts that feed more steps than one: how often, by which weights, and recorded once."""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from grpo_protocol.messages import Applied, Generation, Step
from grpo_trainer.dataset import as_examples
from grpo_trainer.group_sampling import GroupSampler, SampledGroups
from grpo_trainer.plan import TrainingPlan
from grpo_trainer.prompts import encode_prompts
from grpo_trainer.training_rows import TrainingRow
from library_runs import ROWS, Library
from run_results import query
from sent_commands import send_after_steps

GROUP = 4
PROMPTS = ROWS[:5]
SHAPES: list[dict[str, Any]] = [
    {},
    {"num_iterations": 3},
    {"steps_per_generation": 3},
    {"steps_per_generation": 3, "num_iterations": 3},
    {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2},
]

Rollout = tuple[tuple[int, ...], tuple[float, ...]]
"""The ids of a completion, and their log-probs as drawn: no two rollouts have both in common."""


class Use(NamedTuple):
    """One rollout in the loss of one update."""

    update: int
    """How many updates the weights had seen."""
    rollout: Rollout
    row: TrainingRow


class Ledger:
    """Counts where each rollout of a run comes from and what it is used for."""

    def __init__(self, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
        learner = library.trainer.learner
        self.sampled: dict[Rollout, int] = {}
        """How many updates the weights had seen that sampled it."""
        self.scored: defaultdict[Rollout, list[int]] = defaultdict(list)
        """How many the weights had seen whose log-probs were stored."""
        self.uses: list[Use] = []
        sample, logprobs, gradient = GroupSampler.sample, learner.scores, learner.gradient

        def sampling(sampler: GroupSampler, *args: Any) -> SampledGroups:
            found = sample(sampler, *args)
            for group in found.kept:
                for completion in group.completions:
                    key = tuple(completion.token_ids), tuple(completion.logprobs)
                    assert key not in self.sampled
                    self.sampled[key] = learner.updates
            return found

        def scoring(rows: Sequence[TrainingRow], *args: Any) -> Any:
            for row in rows:
                self.scored[rollout_of(row)].append(learner.updates)
            return logprobs(rows, *args)

        def training(batches: Sequence[Sequence[TrainingRow]], *args: Any) -> Any:
            self.uses += [
                Use(learner.updates, rollout_of(r), r) for batch in batches for r in batch
            ]
            return gradient(batches, *args)

        monkeypatch.setattr(GroupSampler, "sample", sampling)
        monkeypatch.setattr(learner, "scores", scoring)
        monkeypatch.setattr(learner, "gradient", training)


def rollout_of(row: TrainingRow) -> Rollout:
    assert row.sampling_logprobs is not None
    return tuple(row.completion_ids), tuple(row.sampling_logprobs)


def by_place(completions: list[str], **_: Any) -> list[float]:
    """Every group has a spread, so that no step is without an update."""
    return [float(place) for place in range(len(completions))]


def library(folder: Path, shape: dict[str, Any], **settings: Any) -> Library:
    """Two epochs over five prompts, with steps that move the weights well."""
    values = {"batch_size": 1, "max_steps": None, "num_epochs": 2, "learning_rate": 1e-2}
    return Library(folder, by_place, **{**values, **shape, **settings})


class Trained(NamedTuple):
    """A run that is over."""

    shape: dict[str, Any]
    run: Library
    ledger: Ledger

    @property
    def steps(self) -> list[Step]:
        return self.run.all(Step)


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    run = library(tmp_path_factory.mktemp("reused"), request.param)
    with pytest.MonkeyPatch.context() as monkeypatch:
        ledger = Ledger(run, monkeypatch)
        run.train(PROMPTS)
    return Trained(request.param, run, ledger)


# --- how often, and by which weights


def test_M30_each_rollout_enters_the_loss_as_often_as_asked(trained: Trained) -> None:
    ledger = trained.ledger
    assert len(ledger.sampled) == 2 * len(PROMPTS) * GROUP
    counts = Counter(use.rollout for use in ledger.uses)
    assert counts == dict.fromkeys(ledger.sampled, trained.shape.get("num_iterations", 1))


def test_M30_a_use_after_an_update_has_the_log_probs_of_the_weights_that_sampled(
    trained: Trained,
) -> None:
    ledger = trained.ledger
    late = [use for use in ledger.uses if use.update != ledger.sampled[use.rollout]]
    assert bool(late) == bool(trained.shape)
    for use in late:
        assert ledger.scored[use.rollout] == [ledger.sampled[use.rollout]]
        assert use.row.old_logprobs is not None
        assert use.row.old_logprobs == pytest.approx(use.row.sampling_logprobs, abs=1e-4)


def test_M30_the_ratio_is_1_until_an_update_and_then_leaves_it(trained: Trained) -> None:
    steps = {step.step: step for step in trained.steps}
    planned = list(TrainingPlan(len(PROMPTS), trained.run.trainer.config).steps())
    assert len(steps) == len(planned)
    for plan in planned:
        metrics = steps[plan.number].metrics
        if plan.samples:
            assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-4)
            assert metrics["ratio/max_deviation"] == pytest.approx(0, abs=1e-4)
        else:
            assert (metrics["ratio/max_deviation"] or 0) > 1e-3


def test_the_age_of_rollouts_is_the_number_of_updates_since(trained: Trained) -> None:
    ledger = trained.ledger
    ages: defaultdict[int, set[int]] = defaultdict(set)
    for use in ledger.uses:
        ages[use.update].add(use.update - ledger.sampled[use.rollout])
    told = [step.metrics.get("rollout/age") for step in trained.steps]
    if trained.shape:
        assert [{age} for age in told] == [ages[n] for n in range(len(told))]
    else:
        assert told == [None] * 10


def test_a_window_is_trained_at_the_temperature_at_which_it_was_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With steps too small to move anything the ratio tells of nothing but the temperature."""
    run = library(tmp_path, {"num_iterations": 3}, learning_rate=1e-12, max_steps=6)
    send_after_steps(run, monkeypatch, {1: ["SET temperature=0.3"]})
    run.train(PROMPTS)
    steps = run.all(Step)
    assert [step.metrics["ratio/mean"] for step in steps] == pytest.approx([1] * 6, abs=1e-5)
    first, second = steps[0].metrics["entropy"], steps[3].metrics["entropy"]
    assert second < 0.8 * first
    assert [step.metrics["entropy"] for step in steps[:3]] == pytest.approx([first] * 3, abs=1e-4)
    (done,) = [event for event in run.all(Applied) if event.command == "SET temperature"]
    assert done.step == 4
    assert run.query("SELECT step FROM setting_changes") == [(4,)]


def test_other_settings_hold_from_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Library(tmp_path, num_iterations=2, max_steps=3)
    send_after_steps(run, monkeypatch, {1: ["SET learning_rate=0.5"]})
    run.train()
    assert [step.learning_rate for step in run.all(Step)] == [1e-5, 0.5, 0.5]


# --- recorded once


def test_completions_are_told_and_recorded_with_the_step_that_first_trains_on_them(
    trained: Trained,
) -> None:
    run, ledger = trained.run, trained.ledger
    first_use: dict[Rollout, int] = {}
    for use in ledger.uses:
        first_use.setdefault(use.rollout, use.update + 1)
    expected = Counter((step, ids) for (ids, _), step in first_use.items())
    told = run.all(Generation)
    assert Counter((event.step, tuple(event.token_ids)) for event in told) == expected
    recorded = query(
        run.folder,
        "SELECT step, generations.token_ids, reward FROM generations JOIN training_steps "
        "ON step_id = training_steps.id ORDER BY step, batch_index, group_index",
    )
    assert [(step, json.loads(ids), reward) for step, ids, reward in recorded] == [
        (event.step, event.token_ids, event.reward) for event in told
    ]


def test_every_step_has_a_row_and_an_event_of_its_own(trained: Trained) -> None:
    steps = trained.steps
    numbers = [step.step for step in steps]
    assert numbers == list(range(1, len(numbers) + 1))
    sql = "SELECT step, state, mean_reward FROM training_steps ORDER BY step"
    rows = query(trained.run.folder, sql)
    assert rows == [(step.step, "done", step.mean_reward) for step in steps]
    assert all(step.mean_reward is not None for step in steps)


def test_tokens_are_counted_once(trained: Trained) -> None:
    run = trained.run
    encoded = encode_prompts(as_examples(PROMPTS), run.trainer.policy.source.tokenizer)
    lengths = {prompt.example.question: len(prompt.token_ids) for prompt in encoded}
    per_step: Counter[int | None] = Counter()
    for event in run.all(Generation):
        per_step[event.step] += event.tokens + lengths[event.prompt]
    sums = itertools.accumulate(per_step[step.step] for step in trained.steps)
    assert [step.metrics["num_tokens"] for step in trained.steps] == list(sums)
    sampled = sum(event.tokens for event in run.all(Generation))
    assert sum(step.total_tokens for step in trained.steps) == sampled


def test_the_last_window_of_a_cut_off_run_trains_only_the_steps_that_are_left(
    tmp_path: Path,
) -> None:
    run = library(tmp_path, {"steps_per_generation": 3}, max_steps=4)
    run.train(PROMPTS)
    assert [step.step for step in run.all(Step)] == [1, 2, 3, 4]
    assert Counter(event.step for event in run.all(Generation)) == dict.fromkeys(range(1, 5), GROUP)


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
