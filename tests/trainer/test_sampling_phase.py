"""The sampling phase: what it makes of the groups that were sampled for the steps to come."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from grpo_protocol import GRPOConfig
from grpo_trainer.group_sampling import SampledGroups
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.plan import PlannedStep, PlannedWindow
from grpo_trainer.rollout_batch import RolloutBatch, ScoredGroup
from grpo_trainer.step_guard import StepGuard
from grpo_trainer.trainer import GRPOTrainer
from grpo_trainer.training_rows import TrainingRow
from scored_groups import group, prompts


class Sampler:
    """Gives what it was told to."""

    def __init__(self, kept: list[ScoredGroup], discarded: list[ScoredGroup]) -> None:
        self.found = SampledGroups(kept, discarded, 3 if discarded else 1)

    def sample(self, planned: PlannedWindow, config: GRPOConfig) -> SampledGroups:
        return self.found


class Learner:
    """Marks what went through it."""

    def with_logprobs(self, batch: Sequence[TrainingRow], config: GRPOConfig) -> list[TrainingRow]:
        return [replace(row, old_logprobs=[float(len(batch))]) for row in batch]


def sampled(
    planned: list[list[int]], kept: list[ScoredGroup], discarded: list[ScoredGroup] | None = None
) -> RolloutBatch:
    """Before step 7, by a trainer that has no model."""
    trainer: Any = GRPOTrainer.__new__(GRPOTrainer)
    trainer.learner, trainer.scorer = Learner(), SimpleNamespace(weights=[1.0])
    trainer._guard = StepGuard(Reporter())
    run = SimpleNamespace(config=GRPOConfig(group_size=2, temperature=0.7))
    step = PlannedStep(7, 0, 7, PlannedWindow(7, planned), 0, 0)
    found = trainer._sample(run, Sampler(kept, discarded or []), step, prompts(8))
    return cast(RolloutBatch, found)


def test_groups_are_dealt_out_as_planned_and_scored_one_micro_batch_at_a_time() -> None:
    planned = [[4, 1], [2, 0], [3]]
    found = sampled(planned, [group(row, [0, 1]) for row in (4, 1, 2, 0, 3)])
    assert [[one.prompt for one in part.groups] for part in found.mini_batches] == planned
    assert (found.first_step, found.temperature, found.sampling_rounds) == (7, 0.7, 1)
    assert [len(part.micro_batches) for part in found.mini_batches] == [2, 2, 1]
    rows = [row for part in found.mini_batches for batch in part.micro_batches for row in batch]
    assert [row.prompt_ids[0] for row in rows] == [4, 4, 1, 1, 2, 2, 0, 0, 3, 3]
    assert all(row.old_logprobs == [2.0] for row in rows)


def test_groups_that_were_replaced_are_told_with_the_first_step_and_teach_nothing() -> None:
    kept, flat = [group(4, [0, 1]), group(1, [1, 0])], group(2, [1, 1])
    found = sampled([[4], [1]], kept, [flat])
    assert found.sampling_rounds == 3
    first, second = found.mini_batches
    (told,) = first.discarded
    assert (told.prompt, told.has_spread, told.advantages) == (2, False, [None, None])
    assert [one.prompt for one in first.all_groups] == [4, 2]
    assert second.discarded == []
    trained = [row.prompt_ids for part in found.mini_batches for row in part.micro_batches[0]]
    assert trained == [[4] * 5] * 2 + [[1] * 2] * 2
    assert first.num_tokens(prompts(8)) == (5 + 1) + (5 + 2) + (3 + 1) + (3 + 2)
