"""Opens the record of a run and puts the learner where the run left off."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from grpo_protocol import ConfigError
from grpo_protocol.config import GRPOConfig, config_values
from grpo_protocol.database import DATABASE_NAME
from grpo_protocol.messages import DatabasePath, Event, Failed, Init, Log, ResumeState
from grpo_trainer.checkpoint import DatasetState
from grpo_trainer.dataset import Example, dataset_hash
from grpo_trainer.learner import Learner
from grpo_trainer.output.recorded_past import RecordedPast
from grpo_trainer.output.recorder import NullRecorder, Recorder
from grpo_trainer.output.run_log import RunLog
from grpo_trainer.plan import TrainingPlan
from grpo_trainer.resuming import Resumption, effective_config, resume, set_aside_later
from grpo_trainer.run import Run
from grpo_trainer.run_folder import file_name
from grpo_trainer.session import Session, display_name, tell_failure


@contextmanager
def open_run(
    session: Session,
    config: GRPOConfig,
    plan: TrainingPlan,
    examples: Sequence[Example],
    learner: Learner,
) -> Iterator[Run]:
    """A run ready for its next step; its record is closed however the block ends.

    A failure is told while the record can still take it. Raises `CheckpointError` before anything
    of an earlier run is touched, and `RecorderError` or `ConfigError` for the record.
    """
    dataset = DatasetState(len(examples), dataset_hash(list(examples)))
    effective = effective_config(config, session.folder)
    resumption = resume(session.folder, effective, dataset, learner, plan)
    recorder: Recorder | NullRecorder = NullRecorder()
    run: Run | None = None
    with ExitStack() as stack:
        try:
            run_log = _open_run_log(stack, session, config, len(examples))
            recorder = _open_recorder(stack, session, resumption)
            _forget_what_follows(session, resumption, run_log)
            run = Run(
                session=session,
                start_config=effective,
                resumption=resumption,
                plan=plan,
                dataset=dataset,
                learner=learner,
                recorder=recorder,
                run_log=run_log,
            )
            _announce(run, session, resumption)
            yield run
        except BaseException as error:
            done = resumption.state.step if resumption.state else 0
            _close_after(error, session, run, recorder, done)
            raise


def _close_after(
    error: BaseException,
    session: Session,
    run: Run | None,
    recorder: Recorder | NullRecorder,
    done: int,
) -> None:
    try:
        if run is not None:
            run.save_after_crash()
    finally:
        recorder.end("crashed", run.step if run else done)
        tell_failure(session.reporter, error)


def _open_recorder(
    stack: ExitStack, session: Session, resumption: Resumption
) -> Recorder | NullRecorder:
    config, state = resumption.config, resumption.state
    if not config.output_store.enabled:
        return NullRecorder()
    recorder = Recorder.open(
        Path(config.output_store.local_path or session.folder / DATABASE_NAME),
        run_id=state.run_id if state else None,
        run_name=config.run_name,
        model_name=display_name(config),
        model_path=config.model or "",
        config=config,
        resume_after_step=state.step if state else None,
        on_problem=lambda message: session.reporter.log("error", message),
    )
    stack.callback(recorder.close)

    def record_log(event: Event) -> None:
        if isinstance(event, Log):
            recorder.log(event)
        elif isinstance(event, Failed):
            recorder.log(Log("error", f"failed: {event.error}"))

    session.reporter.listen(record_log)
    return recorder


def _open_run_log(
    stack: ExitStack, session: Session, config: GRPOConfig, num_examples: int
) -> RunLog | None:
    if not config.log_jsonl:
        return None
    name = file_name(config.run_name or session.folder.name)
    path = session.folder / f"{name}.jsonl"
    try:
        run_log = RunLog(
            path,
            log_interval=config.log_interval,
            num_examples=num_examples,
            on_problem=lambda message: session.reporter.log("error", message),
        )
    except OSError as error:
        raise ConfigError(
            f"log file {path}: {error.strerror}; choose another --output-dir, or log_jsonl=false"
        ) from error
    stack.callback(run_log.close)
    session.reporter.listen(run_log.handle)
    return run_log


def _forget_what_follows(session: Session, resumption: Resumption, run_log: RunLog | None) -> None:
    """Steps that are taken again stand once in the log, and compete with no older ones."""
    if resumption.state is None:
        return
    if run_log is not None:
        run_log.truncate_after(resumption.state.step)
    if note := set_aside_later(session.folder, resumption.state):
        resumption.notes.append(("info", note))


def _announce(run: Run, session: Session, resumption: Resumption) -> None:
    """Says where the run is recorded, where it stands, and what it runs with."""
    emit, state = session.reporter.emit, resumption.state
    if isinstance(run.recorder, Recorder):
        emit(DatabasePath(str(run.recorder.path), run.recorder.run_id, run.config.run_name))
    if state is not None and state.step:
        emit(_resume_state(state.step, run.plan, run.recorder.past))
    emit(Init(display_name(run.config), config_values(run.config), run.plan.total_steps))
    for level, message in resumption.notes:
        session.reporter.log(level, message)
    for key in resumption.restored:
        run.record_setting(key, str(getattr(run.config, key)))


def _resume_state(step: int, plan: TrainingPlan, past: RecordedPast) -> ResumeState:
    """The position is that of the last step done, in the epoch that it belongs to."""
    epoch, in_epoch = divmod(step - 1, plan.steps_per_epoch)
    return ResumeState(
        step=step,
        epoch=epoch + 1,
        total_epochs=plan.total_epochs,
        step_in_epoch=in_epoch + 1,
        total_steps_in_epoch=plan.steps_per_epoch,
        metrics_history=past.history,
        aggregates=past.aggregates,
    )
