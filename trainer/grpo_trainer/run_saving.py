"""When and under which name the steps of a run are saved, and what is said about it."""

from collections.abc import Callable
from pathlib import Path

from grpo_protocol.messages import Checkpoint, CheckpointKind, RunStatus
from grpo_trainer import checkpoint
from grpo_trainer.checkpoint import TrainingState
from grpo_trainer.learner import Learner
from grpo_trainer.output.recorder import NullRecorder, Recorder
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.output.run_log import RunLog
from grpo_trainer.rollout_batch import RolloutBatch


class RunSaver:
    """Writes the checkpoints of one run; `describe` gives the state that each one stores.

    `rollouts_due` gives the rollouts that the steps to come still train on.
    """

    def __init__(
        self,
        *,
        folder: Path,
        keep: int,
        learner: Learner,
        reporter: Reporter,
        recorder: Recorder | NullRecorder,
        run_log: RunLog | None,
        run_id: str,
        done: int,
        describe: Callable[[], TrainingState],
        rollouts_due: Callable[[], RolloutBatch | None],
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._learner = learner
        self._reporter = reporter
        self._recorder = recorder
        self._run_log = run_log
        self._describe = describe
        self._rollouts_due = rollouts_due
        self._saved_steps = checkpoint.steps_saved_by(folder, run_id)
        self._last_saved = done
        self.setting_unsaved = False
        """A setting was changed since the last save."""
        self._finished_updates = learner.updates

    def save(self, kind: CheckpointKind, name: str | None = None) -> Path:
        """Writes a checkpoint of the steps done. Raises `OSError`; older ones stay as they are."""
        state = self._describe()
        folder = self._folder / (name or f"checkpoint-{state.step}")
        self._reporter.phase(state.step, "saving")
        self._secure_record(folder.name)
        checkpoint.save_checkpoint(folder, self._learner, state, self._rollouts_due())
        self._last_saved, self.setting_unsaved = state.step, False
        self._reporter.emit(Checkpoint(str(folder), state.step, kind))
        if folder.name == f"checkpoint-{state.step}":
            self._make_room(state.step)
        return folder

    def step_finished(self) -> None:
        """The weights are those of the step that counts as done."""
        self._finished_updates = self._learner.updates

    def save_periodically(self) -> None:
        """A periodic checkpoint; one that cannot be written does not end the run."""
        try:
            self.save("periodic")
        except OSError as error:
            step = self._describe().step
            self._reporter.log(
                "error", f"checkpoint at step {step} could not be saved: {error}; going on"
            )

    def save_last(self, status: RunStatus) -> Path | None:
        """What a run leaves when it ends in order; `None` when there is nothing. See `save`."""
        step = self._describe().step
        if status == "completed":
            return self.save("final", "final")
        if step and (step != self._last_saved or self.setting_unsaved):
            return self.save("stop")
        path = self._folder / f"checkpoint-{step}"
        return path if path.is_dir() else None  # a resumed run may have come from elsewhere

    def save_after_crash(self) -> None:
        """Saves the steps done since the last save, if the weights are still sound.

        Whatever goes wrong here must not hide what went wrong before.
        """
        try:
            step = self._describe().step
            if self._learner.updates != self._finished_updates:
                # Saved under the step before, the same update would be made twice after a resume.
                self._reporter.log("warn", f"step {step + 1} was left half done: not saved")
            elif step and step != self._last_saved and self._learner.is_finite():
                self.save("emergency", f"emergency-{step}")
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._reporter.log("error", f"emergency checkpoint could not be saved: {reason}")

    def _secure_record(self, name: str) -> None:
        """Brings to the disk what the record holds of the steps before they count as saved."""
        lost = [] if self._recorder.commit() else [f"database {self._recorder.path}"]
        if self._run_log is not None and not self._run_log.flush():
            lost.append(f"log file {self._run_log.path}")
        if lost:
            self._reporter.log("warn", f"{name} is saved without its record: {', '.join(lost)}")

    def _make_room(self, step: int) -> None:
        if step not in self._saved_steps:
            self._saved_steps.append(step)
        for old in checkpoint.prune(self._folder, self._keep, self._saved_steps):
            self._reporter.log("debug", f"removed {old} (max_checkpoints)")
