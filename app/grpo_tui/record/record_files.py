"""The files beside a record: the trainer's lock, and those that SQLite keeps while it is open."""

import fcntl
import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

LOCK_NAME = "run.lock"
_DEAD_MAN_SWITCH = 128
"""Byte of a `-shm` file on which every process that has the database open holds a shared lock."""

_opened_here: Counter[str] = Counter()


def trainer_is_alive(folder: Path) -> bool:
    """Whether the lock of `folder` names a living process."""
    try:
        pid = json.loads((folder / LOCK_NAME).read_text("utf-8"))["pid"]
        if not isinstance(pid, int) or pid <= 0:
            return False
        os.kill(pid, 0)
    except PermissionError:
        # The process exists and belongs to somebody else.
        return True
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return False
    return True


def is_finished(database: Path) -> bool:
    """Nobody writes to it, and all that was written lies in the one file."""
    unfinished = (_beside(database, "-wal"), _beside(database, "-journal"))
    return not (database.parent / LOCK_NAME).exists() and not any(map(_size, unfinished))


def signature(database: Path) -> tuple[int, ...]:
    """Changes whenever somebody writes to the record or begins or ends to do so.

    The first number is the time of the last write, in nanoseconds.
    """
    modified, size = _stat(database)
    wal_modified, wal_size = _stat(_beside(database, "-wal"))
    lock_modified, _ = _stat(database.parent / LOCK_NAME)
    newest = max(modified, wal_modified if wal_size else 0)
    return newest, modified, size, wal_modified if wal_size else 0, wal_size, lock_modified


def opened(database: Path) -> None:
    """To be told of every connection of this process that makes side files."""
    _opened_here[os.path.realpath(database)] += 1


def closed(database: Path) -> None:
    """The counterpart of `opened`: the last to close removes side files that hold nothing."""
    key = os.path.realpath(database)
    _opened_here[key] -= 1
    if _opened_here[key] > 0:
        return
    del _opened_here[key]
    with suppress(OSError):
        _remove_unless_open_elsewhere(database)


def _remove_unless_open_elsewhere(database: Path) -> None:
    shared = _beside(database, "-shm")
    with shared.open("r+b") as file:
        # Fails while another process has the database open, as it does for SQLite itself.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _DEAD_MAN_SWITCH)
        if is_finished(database):
            _beside(database, "-wal").unlink(missing_ok=True)
            shared.unlink(missing_ok=True)


def _beside(database: Path, suffix: str) -> Path:
    return database.with_name(database.name + suffix)


def _size(path: Path) -> int:
    return _stat(path)[1]


def _stat(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size
