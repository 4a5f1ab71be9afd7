"""What the trainer and its reward worker say to each other: JSON in frames over two pipes."""

import os
import select
import struct
import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.calling import CallSignature, Score
from grpo_trainer.rewards.files import RewardSpec

_HEADER = struct.Struct(">Q")
_MAX_FRAME = 1 << 32
_CHUNK = 1 << 20
_LOOK_SECONDS = 0.2
"""How often a waiting side looks whether the other one still lives."""


class LoadFiles(msgspec.Struct, frozen=True, tag=True):
    """First request: import these."""

    specs: list[RewardSpec]


class ScoreBatch(msgspec.Struct, frozen=True, tag=True):
    """Call every function with this batch."""

    batch: RewardBatch


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The functions are ready."""

    signatures: list[CallSignature]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The functions cannot be used."""

    message: str
    detail: str = ""


class Running(msgspec.Struct, frozen=True, tag=True):
    """These functions are being called."""

    functions: list[str]


class Scored(msgspec.Struct, frozen=True, tag=True):
    """What each function gave."""

    scores: dict[str, list[Score]]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A function raised, or returned what is no score."""

    function: str
    message: str
    row: int | None
    detail: str


Request: TypeAlias = LoadFiles | ScoreBatch
Reply: TypeAlias = Loaded | Refused | Running | Scored | Failed

encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
decode_reply = msgspec.json.Decoder(Reply).decode


class PeerGone(Exception):
    """The other side has closed its pipe, died, or sent what is no frame."""


class Channel:
    """Frames in and out. A deadline is a time of `time.monotonic`; None waits for ever."""

    def __init__(
        self, read_fd: int, write_fd: int, peer_lives: Callable[[], bool] | None = None
    ) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._peer_lives = peer_lives
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    def send(self, payload: bytes, deadline: float | None = None) -> None:
        """Writes one frame. Raises `PeerGone` or `TimeoutError`."""
        for part in (_HEADER.pack(len(payload)), payload):
            rest = memoryview(part)
            while rest:
                self._wait(self._write_fd, select.POLLOUT, deadline)
                try:
                    rest = rest[os.write(self._write_fd, rest[:_CHUNK]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError as error:
                    raise PeerGone from error

    def receive(self, deadline: float | None = None) -> bytes:
        """The next frame. Raises `PeerGone` or `TimeoutError`."""
        (size,) = _HEADER.unpack(self._read_exactly(_HEADER.size, deadline))
        if size > _MAX_FRAME:
            raise PeerGone
        return self._read_exactly(size, deadline)

    def _read_exactly(self, size: int, deadline: float | None) -> bytes:
        buffer = bytearray()
        while len(buffer) < size:
            self._wait(self._read_fd, select.POLLIN, deadline)
            try:
                chunk = os.read(self._read_fd, min(size - len(buffer), _CHUNK))
            except BlockingIOError:
                continue
            if not chunk:
                raise PeerGone
            buffer += chunk
        return bytes(buffer)

    def _wait(self, fd: int, event: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(fd, event)
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            # Asked before the poll: what a dying side wrote last is read first.
            lives = self._peer_lives is None or self._peer_lives()
            if poll.poll(self._milliseconds(left) if lives else 0):
                return
            if not lives:
                raise PeerGone

    def _milliseconds(self, left: float | None) -> float | None:
        """The end of the pipe tells of a death, unless a child of the dead still holds it."""
        limits = [limit for limit in (left, _LOOK_SECONDS if self._peer_lives else None) if limit]
        return min(limits) * 1000 if limits else None
