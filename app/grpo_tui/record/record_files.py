"""The files beside a record: the trainer's lock, and those that SQLite keeps while it is open."""

import fcntl
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from grpo_protocol.run_files import LOCK_NAME, decode_lock_note

_DEAD_MAN_SWITCH = 128
"""Byte of a `-shm` file on which every process that has the database open holds a shared lock."""

_opened_here: Counter[str] = Counter()


def trainer_is_alive(folder: Path) -> bool:
    """Whether the lock of `folder` names a living process."""
    try:
        note = decode_lock_note((folder / LOCK_NAME).read_bytes())
        if note is None or note.pid <= 0:
            return False
        os.kill(note.pid, 0)
    except PermissionError:
        # The process exists and belongs to somebody else.
        return True
    except (OSError, OverflowError):
        return False
    return True


def is_finished(database: Path, run_folder: Path | None = None) -> bool:
    """Nobody writes to it, and all that was written lies in the one file.

    `run_folder` is that of the run in hand, whose lock counts too when the record lies elsewhere.
    """
    unfinished = (_beside(database, "-wal"), _beside(database, "-journal"))
    locked = any((folder / LOCK_NAME).exists() for folder in _folders(database, run_folder))
    return not locked and not any(map(_size, unfinished))


def has_log(database: Path) -> bool:
    """There is a write-ahead log, if an empty one: somebody has the record open, or had."""
    return _beside(database, "-wal").exists()


def is_written(database: Path, run_folder: Path | None = None) -> bool:
    """A trainer lives that may write to it."""
    return any(map(trainer_is_alive, _folders(database, run_folder)))


def signature(database: Path, run_folder: Path | None = None) -> tuple[int, ...]:
    """Changes whenever somebody writes to the record or begins or ends to do so.

    The first number is the time of the last write, in nanoseconds.
    """
    modified, size = _stat(database)
    wal_modified, wal_size = _stat(_beside(database, "-wal"))
    locks = (_stat(folder / LOCK_NAME)[0] for folder in _folders(database, run_folder))
    newest = max(modified, wal_modified if wal_size else 0)
    return newest, modified, size, wal_modified if wal_size else 0, wal_size, *locks


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


def _folders(database: Path, run_folder: Path | None) -> list[Path]:
    return [database.parent] if run_folder is None else [database.parent, run_folder]


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
