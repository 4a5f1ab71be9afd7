"""The folder of a run: named, made, and held by one living writer at a time."""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from grpo_protocol.config_input import ConfigError
from grpo_protocol.run_files import (
    DATABASE_NAME,
    LOCK_NAME,
    LockNote,
    decode_lock_note,
    encode_lock_note,
)
from grpo_trainer.fork_hygiene import held_by_this_process

_CHECKPOINT = re.compile(r"(checkpoint|emergency)-.*|final")
# First bytes of the log file of a run; a dataset in JSONL is nobody's run.
_LOG_START = b'{"event":"'


def new_run_path(
    name: str, parent: Path = Path("outputs"), clock: Callable[[], float] = time.time
) -> Path:
    """A folder in `parent` that does not exist yet: NAME-YYYYmmdd-HHMMSS, then with -2, -3, …"""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
    path = first = parent / f"{file_name(name)}-{stamp}"
    number = 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def file_name(name: str) -> str:
    """`name` as the name of a file: one part, not hidden, without control characters."""
    cleaned = re.sub(r"[^\w.+=@ -]+", "-", name).strip("-. ")
    # Most file systems end at 255 bytes; a time stamp and a suffix have to fit as well.
    return cleaned.encode()[:200].decode(errors="ignore") or "run"


class RunFolder:
    """A claimed folder; made by `RunFolder.claim`, given back by `release`."""

    def __init__(self, path: Path, lock_fd: int, made: list[Path]) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self._made = made
        held_by_this_process.add(self)

    @classmethod
    def claim(cls, path: Path, resume: bool) -> "RunFolder":
        """Makes the folder if need be and becomes its only writer. Raises `ConfigError`.

        A fresh start in a folder that holds a run is refused.
        """
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock_fd = _lock(path)
        except OSError as error:
            raise ConfigError(
                f"output_dir={path}: {error.strerror}; choose a folder that can be written"
            ) from error
        folder = cls(path, lock_fd, made)
        found = None if resume else _trace_of_run(path)
        if found is not None:
            folder.release()
            raise ConfigError(
                f"output_dir={path}: holds another run ({found}); go on with it by --resume, "
                "or choose another --output-dir"
            )
        return folder

    def release(self) -> None:
        """Ends the claim; a folder that was made for it and stayed empty goes as well."""
        if self not in held_by_this_process:
            return
        held_by_this_process.discard(self)
        with contextlib.suppress(OSError):
            (self.path / LOCK_NAME).unlink()
        os.close(self._lock_fd)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def forget_in_child(self) -> None:
        """After a fork: a child that outlives the trainer must not keep the folder locked."""
        os.close(self._lock_fd)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _lock(path: Path) -> int:
    """The descriptor that holds the lock. Raises `ConfigError` when another process holds it."""
    lock_path = path / LOCK_NAME
    while True:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_same_file(fd, lock_path):
                # The holder before us removed the file between our opening and locking it.
                os.close(fd)
                continue
            os.ftruncate(fd, 0)
            note = LockNote(os.getpid(), datetime.now(UTC).isoformat(timespec="seconds"))
            os.write(fd, encode_lock_note(note))
            return fd
        except BlockingIOError:
            holder = _holder(fd)
            os.close(fd)
            raise ConfigError(
                f"output_dir={path}: another run is writing here ({holder}); "
                "wait for it, stop it, or choose another --output-dir"
            ) from None
        except BaseException:
            os.close(fd)
            raise


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _holder(fd: int) -> str:
    note = decode_lock_note(os.pread(fd, 4096, 0))
    return "it has just started" if note is None else f"pid {note.pid}, since {note.started}"


def _trace_of_run(path: Path) -> str | None:
    """The name of something in `path` that a run has left there."""
    for entry in sorted(path.iterdir()):
        if entry.name == DATABASE_NAME or (
            entry.is_dir() and _CHECKPOINT.fullmatch(entry.name) is not None
        ):
            return entry.name
        if entry.suffix == ".jsonl" and entry.is_file() and _starts_as_log(entry):
            return entry.name
    return None


def _starts_as_log(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_LOG_START)) == _LOG_START
    except OSError:
        return False
