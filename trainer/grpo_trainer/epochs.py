"""Marks where epochs begin and end, with the means of their steps."""

from collections.abc import Callable

from grpo_protocol.messages import EpochEnd, EpochStart, Event, Step
from grpo_trainer.plan import PlannedStep, TrainingPlan
from grpo_trainer.stopwatch import Stopwatch
from grpo_trainer.summary import known_mean


class EpochTracker:
    """Emits `epoch_start` and `epoch_end`; steps without loss or reward stay out of the means."""

    def __init__(self, plan: TrainingPlan, emit: Callable[[Event], None]) -> None:
        self._plan = plan
        self._emit = emit
        self._epoch: int | None = None
        self._losses: list[float | None] = []
        self._rewards: list[float | None] = []
        self._watch = Stopwatch()

    def enter(self, planned: PlannedStep) -> None:
        """Before a step; begins its epoch unless it is the one under way."""
        if self._epoch == planned.epoch:
            return
        self._epoch = planned.epoch
        self._losses, self._rewards, self._watch = [], [], Stopwatch()
        self._emit(
            EpochStart(planned.epoch + 1, self._plan.total_epochs, self._plan.steps_per_epoch)
        )

    def add(self, step: Step) -> None:
        """After a step; ends the epoch with its last one."""
        self._losses.append(step.loss)
        self._rewards.append(step.mean_reward)
        if step.step_in_epoch == self._plan.steps_per_epoch or step.step == self._plan.total_steps:
            self.leave()

    def leave(self) -> None:
        """Ends the epoch under way, whole or not."""
        if self._epoch is None:
            return
        loss, reward = known_mean(self._losses), known_mean(self._rewards)
        self._emit(EpochEnd(self._epoch + 1, loss, reward, self._watch.lap()))
        self._epoch = None
