"""The files of a run's folder that both sides know by name, and what the lock file says."""

import msgspec

from grpo_protocol.database import DATABASE_NAME as DATABASE_NAME

LOCK_NAME = "run.lock"
"""Lies in the folder while a trainer writes there; the system holds the lock on it."""


class LockNote(msgspec.Struct, frozen=True):
    """Content of the lock file: who holds it."""

    pid: int
    started: str
    """ISO 8601, UTC."""


def encode_lock_note(note: LockNote) -> bytes:
    """The whole content of the lock file."""
    return msgspec.json.encode(note) + b"\n"


def decode_lock_note(content: bytes) -> LockNote | None:
    """The note in `content`; None while it is not whole, or when it is something else."""
    try:
        return msgspec.json.decode(content, type=LockNote)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
