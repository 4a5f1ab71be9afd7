"""Opens the record of a run and puts the learner where the run left off."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from grpo_protocol import ConfigError
from grpo_protocol.config import GRPOConfig, config_values
from grpo_protocol.database import DATABASE_NAME
from grpo_protocol.messages import DatabasePath, Event, Init, Log, ResumeState
from grpo_trainer import checkpoint
from grpo_trainer.checkpoint import DatasetState, TrainingState
from grpo_trainer.dataset import Example, dataset_hash
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.output.recorder import NullRecorder, Recorder
from grpo_trainer.output.run_log import RunLog
from grpo_trainer.plan import TrainingPlan
from grpo_trainer.run import Run
from grpo_trainer.run_folder import file_name
from grpo_trainer.session import Session, display_name


@contextmanager
def open_run(
    session: Session,
    config: GRPOConfig,
    plan: TrainingPlan,
    examples: Sequence[Example],
    learner: Learner,
) -> Iterator[Run]:
    """A run ready for its next step; its record is closed however the block ends.

    Raises `CheckpointError` or `RecorderError` before anything of an earlier run is touched.
    """
    dataset = DatasetState(len(examples), dataset_hash(list(examples)))
    state = _resume(session, config, dataset, learner)
    with ExitStack() as stack:
        recorder = _open_recorder(stack, session, config, state)
        run = Run(
            session=session,
            config=config,
            plan=plan,
            dataset=dataset,
            learner=learner,
            recorder=recorder,
            run_log=_open_run_log(stack, session, config, state, len(examples)),
            run_id=recorder.run_id or (state.run_id if state else str(uuid.uuid4())),
            done=state.step if state else 0,
            tokens_seen=state.num_tokens if state else 0,
        )
        _announce(run, session, recorder, state)
        try:
            yield run
        except BaseException:
            run.save_after_crash()
            recorder.end("crashed", run.step)
            raise


def _resume(
    session: Session, config: GRPOConfig, dataset: DatasetState, learner: Learner
) -> TrainingState | None:
    """Loads the checkpoint to go on from, if one is asked for and there is one."""
    wanted = config.resume_from_checkpoint
    if wanted is None:
        return None
    path = Path(wanted).expanduser()
    if wanted == "latest":
        latest = checkpoint.find_latest(session.folder)
        if latest is None:
            where = f"no complete checkpoint in {session.folder}"
            session.reporter.log("info", f"{where}: starting at step 0")
            return None
        path = latest
    state = checkpoint.load_checkpoint(path, learner)
    if state.dataset != dataset:
        raise CheckpointError(
            f"resume={str(path)!r}: was written with another dataset ({state.dataset.size} rows, "
            f"now {dataset.size}, or other contents); resume with the data it was trained on"
        )
    session.reporter.log("info", f"resumed from {path} after {state.step} steps")
    return state


def _open_recorder(
    stack: ExitStack, session: Session, config: GRPOConfig, state: TrainingState | None
) -> Recorder | NullRecorder:
    if not config.output_store.enabled:
        return NullRecorder()
    recorder = Recorder.open(
        Path(config.output_store.local_path or session.folder / DATABASE_NAME),
        run_id=state.run_id if state else None,
        run_name=config.run_name or session.folder.name,
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

    session.reporter.listen(record_log)
    return recorder


def _open_run_log(
    stack: ExitStack,
    session: Session,
    config: GRPOConfig,
    state: TrainingState | None,
    num_examples: int,
) -> RunLog | None:
    if not config.log_jsonl:
        return None
    name = file_name(config.run_name or "grpo-training")
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
    if state is not None:
        run_log.truncate_after(state.step)
    session.reporter.listen(run_log.handle)
    return run_log


def _announce(
    run: Run, session: Session, recorder: Recorder | NullRecorder, state: TrainingState | None
) -> None:
    emit = session.reporter.emit
    if isinstance(recorder, Recorder):
        name = run.config.run_name or session.folder.name
        emit(DatabasePath(str(recorder.path), recorder.run_id, name))
    if state is not None and state.step:
        per_epoch = run.plan.steps_per_epoch
        emit(
            ResumeState(
                step=state.step,
                epoch=run.plan.epoch_of(state.step) + 1,
                total_epochs=run.plan.total_epochs,
                step_in_epoch=(state.step - 1) % per_epoch + 1,
                total_steps_in_epoch=per_epoch,
            )
        )
    emit(Init(display_name(run.config), config_values(run.config), run.plan.total_steps))
