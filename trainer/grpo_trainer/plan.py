"""Which prompts each optimizer step takes, and which steps share a rollout.

Everything is derived from the step number alone. A window is one sampling phase and the steps
that it feeds: its prompts are dealt out to mini-batches, one for each step, and all of them are
trained on `num_iterations` times.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from grpo_protocol.config import GRPOConfig
from grpo_trainer.dataset import epoch_order

PLAN_SETTINGS = (
    "batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "steps_per_generation",
    "seed",
    "shuffle",
)
"""Config keys that decide, with the size of the dataset, what each step trains on."""


@dataclass(frozen=True)
class PlannedWindow:
    """One sampling phase and the steps that it feeds."""

    first_step: int
    """Number of the step before which it happens."""
    mini_batches: list[list[int]]
    """Rows of the dataset: a list for each step of one iteration."""
    iterations: int = 1
    """How often each mini-batch is trained on."""

    @property
    def prompts(self) -> list[int]:
        """All of them, in the order in which they are sampled."""
        return [row for rows in self.mini_batches for row in rows]

    @property
    def is_reused(self) -> bool:
        """Whether it feeds more steps than one."""
        return len(self.mini_batches) * self.iterations > 1


@dataclass(frozen=True)
class PlannedStep:
    """One optimizer step: `number` counts from 1, `epoch` from 0, `in_epoch` from 1."""

    number: int
    epoch: int
    in_epoch: int
    window: PlannedWindow
    mini_batch: int
    """Which of the window's mini-batches it trains on."""
    iteration: int
    """How many times that mini-batch was trained on before."""

    @property
    def samples(self) -> bool:
        """Whether new rollouts are due."""
        return self.number == self.window.first_step

    @property
    def prompts(self) -> list[int]:
        """Rows of the dataset, in the order in which they are sampled."""
        return self.window.mini_batches[self.mini_batch]


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
        mini_batches = math.ceil(self.num_prompts / self.prompts_per_step)
        return mini_batches * self.config.num_iterations

    @property
    def total_steps(self) -> int:
        return self.config.max_steps or self.config.num_epochs * self.steps_per_epoch

    @property
    def total_epochs(self) -> int:
        return math.ceil(self.total_steps / self.steps_per_epoch)

    def steps(self, done: int = 0) -> Iterator[PlannedStep]:
        """The steps that remain after `done` of them."""
        return map(self.step_after, range(done, self.total_steps))

    def step_after(self, done: int) -> PlannedStep:
        """The step after `done` of them, be it beyond the last: the run may be made longer."""
        epoch, in_epoch = divmod(done, self.steps_per_epoch)
        full = self.config.mini_batches_per_window * self.config.num_iterations
        in_window = in_epoch % full
        window = self._window(epoch, in_epoch - in_window)
        iteration, mini_batch = divmod(in_window, len(window.mini_batches))
        return PlannedStep(done + 1, epoch, in_epoch + 1, window, mini_batch, iteration)

    def starts_window(self, done: int) -> bool:
        """Whether the step after `done` of them samples anew."""
        return self.step_after(done).samples

    def next_sampling(self, step: int) -> int:
        """The first step from `step` on that samples anew, be it beyond the last."""
        while not self.step_after(step - 1).samples:
            step += 1
        return step

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, in which `step` optimizer steps done leave the run."""
        return min(step // self.steps_per_epoch, self.total_epochs - 1)

    def _window(self, epoch: int, start: int) -> PlannedWindow:
        """The window whose first step is the `start`-th of `epoch`, both from 0."""
        size = self.prompts_per_step
        first = start // self.config.num_iterations
        order = _order(self.num_prompts, self.config.seed, epoch, self.config.shuffle)
        mini_batches = [
            order[index * size : (index + 1) * size]
            for index in range(first, first + self.config.mini_batches_per_window)
        ]
        return PlannedWindow(
            first_step=epoch * self.steps_per_epoch + start + 1,
            mini_batches=[rows for rows in mini_batches if rows],
            iterations=self.config.num_iterations,
        )


# Every step asks for it, and for 100,000 rows it takes tenths of a second.
@lru_cache(maxsize=2)
def _order(num_prompts: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    return epoch_order(num_prompts, seed, epoch, shuffle)
