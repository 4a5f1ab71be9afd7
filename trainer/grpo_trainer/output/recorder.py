"""The SQLite record of a run: opens it, and hands each step, completion and line to its writer."""

import sqlite3
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from grpo_protocol.config import GRPOConfig
from grpo_protocol.database import NewerDatabaseError, RecordedStatus, migrate
from grpo_protocol.messages import Eval, Generation, Log, Step
from grpo_trainer.errors import TrainerError
from grpo_trainer.output import recorded_rows as rows
from grpo_trainer.output.database_writer import (
    BUSY_MS,
    LONGEST_WAIT_SECONDS,
    MAX_QUEUED_BYTES,
    DatabaseWriter,
    OnProblem,
    Work,
    Write,
    in_transaction,
)
from grpo_trainer.output.recorded_past import RecordedPast, read_past

_ROW_BYTES = 200


class RecorderError(TrainerError):
    """The database cannot be used; the message is one line with the remedy."""

    exit_code = 2


class Recorder:
    """Records one run; made by `Recorder.open`. No call raises once it is open."""

    def __init__(self, path: Path, run_id: str, past: RecordedPast, writer: DatabaseWriter) -> None:
        self.path = path
        self.run_id = run_id
        self.past = past
        self.dropped_logs = 0
        self._writer = writer

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        run_id: str | None,
        run_name: str | None,
        model_name: str,
        model_path: str,
        config: GRPOConfig,
        resume_after_step: int | None,
        on_problem: OnProblem = lambda message: None,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> "Recorder":
        """Opens or makes the database and the row of the run. Raises `RecorderError`.

        With `run_id` the run goes on: what it recorded after `resume_after_step` is removed.
        `on_problem` gets a line when rows are lost or must wait.
        """
        run = rows.RunIdentity(
            id=run_id or str(uuid.uuid4()),
            name=run_name,
            model_name=model_name,
            model_path=model_path,
            config=config,
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            db = _open(path, lambda db: rows.start_run(db, run, resume_after_step))
            past = _read_past(db, run.id)
        except (OSError, sqlite3.Error, NewerDatabaseError) as error:
            raise RecorderError(f"database {path}: {_explain(error)}") from error
        return cls(path, run.id, past, DatabaseWriter(db, path, on_problem, max_queued_bytes))

    @property
    def failed_writes(self) -> int:
        """Transactions that could not be made."""
        return self._writer.failed_writes

    def scored(
        self,
        step: int,
        epoch: int | None,
        generations: Sequence[Generation],
        texts: Sequence[str] | None = None,
    ) -> None:
        """The completions of `step` with their rewards, before the update.

        `texts` are the completions without thinking and tool calls.
        """
        kept = tuple(generations)
        num_bytes = sum(_size(generation) for generation in kept)
        self._put(
            lambda db: rows.write_scored(db, self.run_id, step, epoch, kept, texts), num_bytes
        )

    def done(self, event: Step) -> None:
        """The step is updated; all its metrics."""
        self._put(lambda db: rows.write_done(db, self.run_id, event))

    def log(self, event: Log) -> None:
        """A line of text. Never waits: when the queue is full the line is left out and counted."""
        created_at = time.time_ns() // 1_000_000
        write: Write = lambda db: rows.write_log(db, self.run_id, created_at, event)  # noqa: E731
        if not self._writer.put_if_room(Work(write, len(event.message) + _ROW_BYTES)):
            self.dropped_logs += 1

    def evaluation(self, event: Eval) -> None:
        """A result on held-out prompts."""
        self._put(lambda db: rows.write_evaluation(db, self.run_id, event))

    def setting(self, step: int, key: str, value: str) -> None:
        """A setting that holds from `step` on."""
        self._put(lambda db: rows.write_setting(db, self.run_id, step, key, value))

    def commit(self, timeout: float = LONGEST_WAIT_SECONDS) -> bool:
        """Waits until all that was recorded would survive a power failure.

        False when something was lost since the last call, or cannot be written now.
        """
        return self._writer.commit(lambda db: rows.touch_run(db, self.run_id), timeout)

    def end(self, status: RecordedStatus, total_steps: int) -> None:
        """Closes the row of the run."""
        self._put(lambda db: rows.end_run(db, self.run_id, status, total_steps))

    def close(self, timeout: float = LONGEST_WAIT_SECONDS) -> None:
        """Writes what is left; the side files go, unless somebody still reads the database."""
        self._writer.close(timeout)

    def _put(self, write: Write, num_bytes: int = _ROW_BYTES) -> None:
        self._writer.put(Work(write, num_bytes))


class NullRecorder:
    """Takes the place of a `Recorder` when recording is off."""

    path = None
    run_id = None
    past = RecordedPast()
    failed_writes = 0
    dropped_logs = 0

    def scored(
        self,
        step: int,
        epoch: int | None,
        generations: Sequence[Generation],
        texts: Sequence[str] | None = None,
    ) -> None: ...

    def done(self, event: Step) -> None: ...

    def log(self, event: Log) -> None: ...

    def evaluation(self, event: Eval) -> None: ...

    def setting(self, step: int, key: str, value: str) -> None: ...

    def commit(self, timeout: float = LONGEST_WAIT_SECONDS) -> bool:
        return True

    def end(self, status: RecordedStatus, total_steps: int) -> None: ...

    def close(self, timeout: float = LONGEST_WAIT_SECONDS) -> None: ...


def _open(path: Path, first: Write) -> sqlite3.Connection:
    # Opened in the caller's thread, used in the writer's alone. Transactions are explicit.
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        migrate(db)
        in_transaction(db, first)
    except BaseException:
        db.close()
        raise
    return db


def _read_past(db: sqlite3.Connection, run_id: str) -> RecordedPast:
    try:
        return read_past(db, run_id)
    except BaseException:
        db.close()
        raise


def _size(generation: Generation) -> int:
    texts = (generation.prompt, generation.completion, generation.thinking or "")
    return _ROW_BYTES + sum(map(len, texts)) + 8 * len(generation.token_ids)


def _explain(error: Exception) -> str:
    text = str(error)
    if "locked" in text:
        return "another program is writing to it; stop it, or set output_store.local_path"
    if "not a database" in text or "malformed" in text:
        return f"{text}; move the file away, or set output_store.local_path"
    if isinstance(error, NewerDatabaseError):
        return text
    reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else text
    return f"{reason}; set output_store.local_path to a file that can be written"
