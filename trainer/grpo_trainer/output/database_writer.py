"""Makes SQLite transactions in order on a thread of its own, so that training never waits for them.

A write that fails is tried again, then counted and reported; what comes after it goes on. Memory is
bounded: only when the disk has not kept up for long does the caller wait.
"""

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

MAX_QUEUED_BYTES = 64 * 1024 * 1024
# Above this the write-ahead file is emptied as soon as no reader is in the middle of a read.
MAX_WAL_BYTES = 16 * 1024 * 1024
LONGEST_WAIT_SECONDS = 60.0
BUSY_MS = 5000
_TRUNCATE_BUSY_MS = 200
_RETRY_SECONDS = (0.1, 0.5, 2.0, 5.0)
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_PERMANENT = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY}

Write = Callable[[sqlite3.Connection], None]
OnProblem = Callable[[str], None]


@dataclass(eq=False)
class Work:
    """One transaction to make, and about how much memory it holds."""

    write: Write
    num_bytes: int
    barrier: bool = False
    """Its commit also brings everything before it safely to the disk."""
    finished: bool = False


class DatabaseWriter:
    """Owns `db` from now on. `on_problem` gets lines for people, from any thread."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        on_problem: OnProblem,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self.failed_writes = 0
        self._db = db
        self._path = path
        self._on_problem = on_problem
        self._max_queued_bytes = max_queued_bytes
        self._changed = threading.Condition()
        self._queue: deque[Work] = deque()
        self._queued_bytes = 0
        self._closing = threading.Event()
        self._failing = False
        self._failures_at_commit = 0
        self._truncate_above = MAX_WAL_BYTES
        self._thread = threading.Thread(target=self._work_all, name="recorder", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> bool:
        """Queues work; waits when the queue is full. False if it will not be done."""
        if self.put_if_room(work):
            return True
        if self._closing.is_set():
            return False
        self._report("the disk is too slow; training waits for it")
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(work), LONGEST_WAIT_SECONDS)
        if self.put_if_room(work):
            return True
        self._count_failure("the disk does not answer")
        return False

    def put_if_room(self, work: Work) -> bool:
        """Queues work unless the queue is full."""
        with self._changed:
            if self._closing.is_set() or not self._has_room(work):
                return False
            self._queue.append(work)
            self._queued_bytes += work.num_bytes
            self._changed.notify_all()
            return True

    def commit(self, last: Write, timeout: float = LONGEST_WAIT_SECONDS) -> bool:
        """Waits until all that was queued, and then `last`, would survive a power failure.

        False when a write was lost since the last call, or cannot be made now.
        """
        barrier = Work(last, 0, barrier=True)
        if not self.put(barrier):
            return False
        with self._changed:
            self._changed.wait_for(lambda: barrier.finished or self._failing, timeout)
            lost = self.failed_writes - self._failures_at_commit
            self._failures_at_commit = self.failed_writes
            return barrier.finished and lost == 0

    def close(self, timeout: float = LONGEST_WAIT_SECONDS) -> None:
        """Finishes all work and leaves one file, unless somebody still reads it."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._report("the disk does not answer; the last rows are missing")

    def _has_room(self, work: Work) -> bool:
        # A single piece of work may be larger than the bound.
        return not self._queue or self._queued_bytes + work.num_bytes <= self._max_queued_bytes

    def _work_all(self) -> None:
        while (work := self._next()) is not None:
            error = self._try(work)
            if error is not None:
                self._count_failure(error)
            elif self._failing:
                self._failing = False
                self._report("writes work again")
            with self._changed:
                work.finished = error is None
                self._changed.notify_all()
            self._keep_wal_small()
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def _next(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            if not self._queue:
                return None
            work = self._queue.popleft()
            self._queued_bytes -= work.num_bytes
            self._changed.notify_all()
            return work

    def _try(self, work: Work) -> str | None:
        """Makes the transaction, several times if need be; or says why it cannot be made."""
        for attempt in count():
            try:
                self._make(work)
                return None
            except sqlite3.OperationalError as error:
                if not self._worth_another_try(error, attempt):
                    return str(error)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            self._closing.wait(_RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])
        return None

    def _make(self, work: Work) -> None:
        if not work.barrier:
            in_transaction(self._db, work.write)
            return
        self._db.execute("PRAGMA synchronous = FULL")
        try:
            in_transaction(self._db, work.write)
        finally:
            self._db.execute("PRAGMA synchronous = NORMAL")

    def _worth_another_try(self, error: sqlite3.OperationalError, attempt: int) -> bool:
        if error.sqlite_errorcode in _PERMANENT or self._closing.is_set() or self._failing:
            return False
        if error.sqlite_errorcode in _LOCKED and self._queued_bytes < self._max_queued_bytes // 2:
            if attempt == len(_RETRY_SECONDS):
                self._report("another program has locked it; rows wait in memory")
            return True
        return attempt < len(_RETRY_SECONDS)

    def _count_failure(self, reason: str) -> None:
        with self._changed:
            self.failed_writes += 1
            first, self._failing = not self._failing, True
            self._changed.notify_all()
        if first:
            self._report(f"not recorded: {reason}; training goes on")

    def _report(self, what: str) -> None:
        # Never under the lock: the receiver may queue a line about it.
        self._on_problem(f"database {self._path}: {what}")

    def _keep_wal_small(self) -> None:
        """A reader in the middle of a read keeps the file from being used again from its start."""
        wal = Path(f"{self._path}-wal")
        with contextlib.suppress(OSError, sqlite3.Error):
            if wal.stat().st_size > self._truncate_above:
                self._db.execute(f"PRAGMA busy_timeout = {_TRUNCATE_BUSY_MS}")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
                # Asking such a reader after every write would slow all of them down.
                self._truncate_above = wal.stat().st_size + MAX_WAL_BYTES


def in_transaction(db: sqlite3.Connection, write: Write) -> None:
    """Makes `write` happen whole or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        write(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
