"""A run under way: its folder, its record, its listeners, and what people ask of it.

The loop in `trainer` decides what a step is; this decides when the next one may begin, where its
results go, and what is saved.
"""

import random
import signal
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from grpo_protocol.commands import Pause, Resume, SaveCheckpoint, Set, Stop
from grpo_protocol.config import GRPOConfig
from grpo_protocol.config_input import with_setting
from grpo_protocol.messages import (
    Applied,
    Complete,
    Eval,
    Generation,
    Paused,
    Resumed,
    RunStatus,
    Step,
)
from grpo_trainer.checkpoint import DatasetState, TrainingState
from grpo_trainer.control import Pending
from grpo_trainer.epochs import EpochTracker
from grpo_trainer.errors import TrainingError
from grpo_trainer.learner import Learner
from grpo_trainer.objective_state import state_of
from grpo_trainer.output.recorder import NullRecorder, Recorder
from grpo_trainer.output.run_log import RunLog
from grpo_trainer.plan import PlannedStep, TrainingPlan
from grpo_trainer.randomness import derived_seed
from grpo_trainer.resuming import Resumption, effective_config, live_settings
from grpo_trainer.rollout_batch import RolloutBatch
from grpo_trainer.run_conditions import conditions_of
from grpo_trainer.run_saving import RunSaver
from grpo_trainer.sample_display import choose_samples
from grpo_trainer.session import Session
from grpo_trainer.stopwatch import Stopwatch

_POLL_SECONDS = 0.2


class Run:
    """State of one run between its first and its last step."""

    def __init__(
        self,
        *,
        session: Session,
        start_config: GRPOConfig,
        resumption: Resumption,
        plan: TrainingPlan,
        dataset: DatasetState,
        learner: Learner,
        recorder: Recorder | NullRecorder,
        run_log: RunLog | None,
    ) -> None:
        state = resumption.state
        self.folder = session.folder
        self.config = resumption.config
        self.plan = plan
        self.reporter = session.reporter
        self.recorder = recorder
        self.step = state.step if state else 0
        """Optimizer steps done."""
        self.tokens_seen = state.num_tokens if state else 0
        """Prompt and completion tokens of all steps done."""
        self.nan_gradients = state.nan_gradients if state else 0
        """Steps whose loss or gradient was not finite."""
        self.evaluated_step = state.evaluated_step if state else None
        """The step of the last evaluation that was recorded."""
        self.rollout_batch = resumption.rollout_batch
        """The rollouts that the steps to come may still train on."""
        self.watch = Stopwatch()
        self._start_config = start_config
        self._dataset = dataset
        self._learner = learner
        self._run_log = run_log
        self._control = session.control
        self._run_id = recorder.run_id or (state.run_id if state else str(uuid.uuid4()))
        self._epochs = EpochTracker(plan, session.reporter.emit)
        self._paused = False
        self._stop: Pending | None = None
        self._control.step = self.step
        self._control.next_sampling = plan.next_sampling
        self._saver = self._make_saver()

    def _make_saver(self) -> RunSaver:
        return RunSaver(
            folder=self.folder,
            keep=self.config.max_checkpoints,
            learner=self._learner,
            reporter=self.reporter,
            recorder=self.recorder,
            run_log=self._run_log,
            run_id=self._run_id,
            done=self.step,
            describe=self._state,
            rollouts_due=self._rollouts_due,
        )

    # --- between steps

    def may_continue(self) -> bool:
        """Applies what was asked; waits while paused; False when the run is to stop."""
        while True:
            while pending := self._control.take(_POLL_SECONDS if self._paused else None):
                self._apply(pending)
            if self._stop is not None or self._control.stop_requested:
                return False
            if self._paused and self._control.unattended:
                self._paused = False
                self.reporter.log("info", "nobody is left who could resume the run: going on")
                self.reporter.emit(Resumed(self.step))
            if not self._paused and self._control.begin(self.step + 1):
                return True

    def stopping(self) -> bool:
        """Whether the step in progress is to be abandoned."""
        return self._control.stop_requested

    def _apply(self, pending: Pending) -> None:
        match pending.command:
            case Pause():
                self._set_paused(True, pending)
            case Resume():
                self._set_paused(False, pending)
            case SaveCheckpoint():
                self._save_as_asked(pending)
            case Set(key=key, value=value):
                self._change_setting(key, value)
                self._applied(pending, message=f"{key}={value}", step=self._holds_from(key))
            case Stop():
                self._stop = pending
            case _:
                self._applied(pending, ok=False, message="not possible now")

    def _change_setting(self, key: str, value: str) -> None:
        changed = with_setting(self.config, key, value)
        self.config = effective_config(changed, self.folder)
        self._saver.setting_unsaved = True
        self.record_setting(key, value)

    def record_setting(self, key: str, value: str) -> None:
        """Records a setting with the first step that it holds for."""
        step = self._holds_from(key)
        self.recorder.setting(step, key, value)
        if self._run_log is not None:
            self._run_log.setting(step, key, value)
            self._run_log.log_interval = self.config.log_interval
        if self.reporter.console is not None:
            self.reporter.console.log_interval = self.config.log_interval

    def _holds_from(self, key: str) -> int:
        return self._control.setting_holds_from(key, self.step + 1)

    def _set_paused(self, paused: bool, pending: Pending) -> None:
        if paused == self._paused:
            self._applied(pending, message="no change")
            return
        self._paused = paused
        self.reporter.emit(Paused(self.step) if paused else Resumed(self.step))
        self._applied(pending)

    def _save_as_asked(self, pending: Pending) -> None:
        try:
            path = self._saver.save("manual")
        except OSError as error:
            self._applied(pending, ok=False, message=f"could not save: {error}")
        else:
            self._applied(pending, path=path)

    def _applied(
        self,
        pending: Pending,
        *,
        ok: bool = True,
        message: str | None = None,
        step: int | None = None,
        path: Path | None = None,
    ) -> None:
        self.reporter.emit(
            Applied(
                line=pending.line,
                command=pending.name,
                ok=ok,
                message=message,
                step=self.step if step is None else step,
                path=str(path) if path else None,
            )
        )

    # --- results of a step

    def begin_step(self, planned: PlannedStep) -> None:
        """Begins the epoch of `planned` unless it is under way."""
        self._epochs.enter(planned)

    def rollouts_of(self, planned: PlannedStep) -> RolloutBatch:
        """The rollouts that `planned` trains on."""
        assert self.rollout_batch is not None
        assert self.rollout_batch.first_step == planned.window.first_step
        return self.rollout_batch

    def scored(
        self, planned: PlannedStep, generations: Sequence[Generation], texts: Sequence[str]
    ) -> None:
        """Records completions with their rewards before the weights move."""
        self.recorder.scored(planned.number, planned.epoch + 1, generations, texts)

    def finish_step(self, event: Step, generations: Sequence[Generation]) -> None:
        """Records a whole step and tells of it."""
        self.step = event.step
        self._control.step = event.step
        self._saver.step_finished()
        self.recorder.done(event)
        self.reporter.emit(event)
        order = list(range(len(generations)))
        random.Random(derived_seed(self.config.seed, "samples", event.step)).shuffle(order)
        for generation in choose_samples(generations, self.config.sample_display, order):
            self.reporter.emit(generation)
        self._epochs.add(event)

    def evaluated(self, event: Eval) -> None:
        """Records an evaluation and tells of it."""
        self.recorder.evaluation(event)
        self.reporter.emit(event)
        self.evaluated_step = event.step

    # --- saving

    def save_if_due(self) -> None:
        """A periodic checkpoint, when it is time."""
        interval = self.config.save_interval
        if interval and self.step % interval == 0 and self.step < self.plan.total_steps:
            self._saver.save_periodically()

    def save_after_crash(self) -> None:
        """Saves the steps done since the last save; never raises."""
        self._saver.save_after_crash()

    def end(self, status: RunStatus) -> None:
        """Saves what is not saved yet and says how the run ended. Raises `TrainingError`."""
        waiting = self._answer_the_rest()
        try:
            path = self._saver.save_last(status)
        except OSError as error:
            for pending in waiting:
                self._applied(pending, ok=False, message=str(error))
            raise TrainingError(f"{status}, but the checkpoint cannot be saved: {error}") from error
        message = None if path else "nothing was done, nothing is saved"
        for pending in waiting:
            self._applied(pending, path=path, message=message)
        self._epochs.leave()
        self.recorder.end(status, self.step)
        self.reporter.emit(Complete(self.step, self.watch.total, status, self._reason()))

    def _answer_the_rest(self) -> list[Pending]:
        """Answers what came too late; returns what the last checkpoint answers."""
        waiting = [self._stop] if self._stop is not None else []
        while pending := self._control.take():
            match pending.command:
                case Stop():
                    self._stop = self._stop or pending
                    waiting.append(pending)
                case SaveCheckpoint():
                    waiting.append(pending)
                case _:
                    self._applied(pending, ok=False, message="the run has ended")
        return waiting

    def _reason(self) -> str | None:
        if self._control.signal_number is not None:
            return signal.Signals(self._control.signal_number).name
        return "STOP" if self._stop is not None else None

    def _rollouts_due(self) -> RolloutBatch | None:
        return None if self.plan.starts_window(self.step) else self.rollout_batch

    def _state(self) -> TrainingState:
        return TrainingState(
            step=self.step,
            epoch=self.plan.epoch_of(self.step),
            timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
            dataset=self._dataset,
            has_optimizer_state=self._learner.updates > 0,
            run_id=self._run_id,
            seed=self.config.seed,
            num_tokens=self.tokens_seen,
            evaluated_step=self.evaluated_step,
            nan_gradients=self.nan_gradients,
            live_settings=live_settings(self._start_config, self.config),
            objective=state_of(self._learner, adaptive_entropy=self.config.adaptive_entropy),
            conditions=conditions_of(self.config),
        )
