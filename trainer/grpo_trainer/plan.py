"""Which prompts each optimizer step takes, derived from the step number alone."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from grpo_protocol.config import GRPOConfig
from grpo_trainer.dataset import epoch_order


@dataclass(frozen=True)
class PlannedStep:
    """One optimizer step: `number` counts from 1, `epoch` from 0, `in_epoch` from 1."""

    number: int
    epoch: int
    in_epoch: int
    prompts: list[int]
    """Rows of the dataset, in the order in which they are sampled."""


@dataclass(frozen=True)
class TrainingPlan:
    """All steps of a run over `num_prompts` prompts."""

    num_prompts: int
    config: GRPOConfig

    @property
    def prompts_per_step(self) -> int:
        return self.config.batch_size * self.config.gradient_accumulation_steps

    @property
    def steps_per_epoch(self) -> int:
        """The last step of an epoch may take fewer prompts."""
        return math.ceil(self.num_prompts / self.prompts_per_step)

    @property
    def total_steps(self) -> int:
        return self.config.max_steps or self.config.num_epochs * self.steps_per_epoch

    @property
    def total_epochs(self) -> int:
        return math.ceil(self.total_steps / self.steps_per_epoch)

    def steps(self, done: int = 0) -> Iterator[PlannedStep]:
        """The steps that remain after `done` of them."""
        for index in range(done, self.total_steps):
            epoch, in_epoch = divmod(index, self.steps_per_epoch)
            order = epoch_order(self.num_prompts, self.config.seed, epoch, self.config.shuffle)
            start = in_epoch * self.prompts_per_step
            rows = order[start : start + self.prompts_per_step]
            yield PlannedStep(index + 1, epoch, in_epoch + 1, rows)

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, in which `step` optimizer steps done leave the run."""
        return min(step // self.steps_per_epoch, self.total_epochs - 1)
