"""The log file of a run: one JSON record a line, for people, scripts and plots.

Records are keyed by `event`, carry a time and the step they belong to, and keep the names of the
mlx-node trainer's file. A write that fails is counted and reported once; training goes on.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from grpo_protocol.codec import encode_json
from grpo_protocol.framing import LineSplitter, Oversized
from grpo_protocol.messages import (
    Checkpoint,
    Complete,
    EpochEnd,
    EpochStart,
    Eval,
    Event,
    Failed,
    Init,
    Log,
    ResumeState,
    Step,
)
from grpo_trainer.summary import mean_of

_CHUNK_BYTES = 1 << 20


class _StepOfRecord(msgspec.Struct):
    """The part of a record that tells where it belongs."""

    step: int | None = None


class RunLog:
    """Appends to `path`. Thread-safe; `log_interval` may be changed while training."""

    def __init__(
        self,
        path: Path,
        *,
        log_interval: int = 1,
        num_examples: int | None = None,
        on_problem: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Opens the file, and repairs an end that a crash has cut. Raises `OSError`."""
        self.path = path
        self.log_interval = log_interval
        self.failed_writes = 0
        self._num_examples = num_examples
        self._on_problem = on_problem
        self._lock = threading.RLock()
        self._step = 0
        self._max_steps: int | None = None
        self._unwritten: Step | None = None
        self._epoch = _EpochTotals()
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        self._repair_end()

    def handle(self, event: Event) -> None:
        """Writes the records of `event`, if it has any."""
        with self._lock:
            if isinstance(event, Step):
                self._handle_step(event)
                return
            if isinstance(event, Complete | Failed):
                self._write_last_step()
            if isinstance(event, EpochStart):
                self._epoch = _EpochTotals()
            if isinstance(event, ResumeState):
                self._step = event.step
            if isinstance(event, Init):
                self._max_steps = event.max_steps
            for name, fields in _records(event, self._num_examples):
                if isinstance(event, EpochEnd):
                    fields |= self._epoch.fields()
                self._write(name, fields)

    def setting(self, step: int, key: str, value: str) -> None:
        """A setting that was changed while training."""
        with self._lock:
            self._write("setting", {"step": step, "key": key, "value": value})

    def flush(self) -> bool:
        """Waits until everything written would survive a power failure."""
        with self._lock:
            if self._fd is None:
                return False
            try:
                os.fsync(self._fd)
            except OSError as error:
                self._count_failure(error)
                return False
            return True

    def truncate_after(self, step: int) -> None:
        """Removes what was written after `step`, so that it stands once when it is done again."""
        with self._lock:
            self._step = step
            self._unwritten = None
            if self._fd is None:
                return
            for line, start in self._lines():
                if (of_line := _step_of(line)) is not None and of_line > step:
                    os.ftruncate(self._fd, start)
                    return

    def close(self) -> None:
        """Writes a last step that was held back by the interval, and closes the file."""
        with self._lock:
            self._write_last_step()
            if self._fd is not None:
                self.flush()
                os.close(self._fd)
                self._fd = None

    def _handle_step(self, event: Step) -> None:
        self._step = event.step
        self._epoch.add(event)
        self._unwritten = event
        if event.step % self.log_interval == 0 or event.step == self._max_steps:
            self._write_last_step()

    def _write_last_step(self) -> None:
        """Whatever the interval, the last step of a run has its record."""
        if self._unwritten is not None:
            self._write("step", _known(self._unwritten))
            self._unwritten = None

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        if self._fd is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"event": event, "timestamp": now, "step": self._step} | fields
        line = memoryview(encode_json(record) + b"\n")
        size = 0
        try:
            size = os.fstat(self._fd).st_size
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            # Half a record would spoil the next one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            self._count_failure(error)

    def _count_failure(self, error: OSError) -> None:
        self.failed_writes += 1
        if self.failed_writes == 1:
            self._on_problem(f"log file {self.path}: {error.strerror}; training goes on")

    def _repair_end(self) -> None:
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if size == 0 or os.pread(self._fd, 1, size - 1) == b"\n":
            return
        *_, (last, start) = self._lines()
        if _is_json(last):
            os.write(self._fd, b"\n")
        else:
            os.ftruncate(self._fd, start)

    def _lines(self) -> Iterator[tuple[bytes, int]]:
        """Each line of the file with its offset; one of absurd length comes empty."""
        assert self._fd is not None
        splitter = LineSplitter()
        start = position = 0
        while chunk := os.pread(self._fd, _CHUNK_BYTES, position):
            position += len(chunk)
            for line in splitter.feed(chunk):
                yield (b"", start) if isinstance(line, Oversized) else (line, start)
                start += (line if isinstance(line, Oversized) else len(line)) + 1
        for line in splitter.flush():
            yield (b"", start) if isinstance(line, Oversized) else (line, start)


class _EpochTotals:
    """Sums over the steps of one epoch, for its record."""

    def __init__(self) -> None:
        self._tokens = 0
        self._advantages: list[float] = []
        self._whole = True

    def add(self, event: Step) -> None:
        # After a resume within the epoch its first steps were not seen.
        if not self._tokens and not self._advantages and event.step_in_epoch not in (None, 1):
            self._whole = False
        self._tokens += event.total_tokens
        if event.mean_advantage is not None:
            self._advantages.append(event.mean_advantage)

    def fields(self) -> dict[str, Any]:
        """Empty when part of the epoch is not known."""
        if not self._whole:
            return {}
        mean = mean_of(self._advantages) if self._advantages else None
        return {"avg_advantage": mean, "total_tokens": self._tokens}


def _records(event: Event, num_examples: int | None) -> list[tuple[str, dict[str, Any]]]:
    """Names and fields of the records of `event`."""
    match event:
        case Init():
            start = {"model": event.model, "max_steps": event.max_steps}
            config = {"num_examples": num_examples, "config": _config(event.config)}
            return [("training_start", start), ("training_config", config)]
        case EpochStart():
            return [("epoch_start", _known(event))]
        case EpochEnd():
            return [("epoch", msgspec.structs.asdict(event))]
        case Checkpoint():
            return [("checkpoint", _known(event))]
        case Eval():
            return [("eval", _known(event))]
        case Log():
            return [("log", _known(event))]
        case Failed():
            return [("failed", _known(event))]
        case Complete():
            fields = _known(event)
            fields["final_step"] = fields.pop("total_steps")
            fields["total_time_ms"] = round(fields.pop("total_time_secs") * 1000)
            return [("training_complete", fields)]
        case _:
            return []


def _known(event: msgspec.Struct) -> dict[str, Any]:
    """Fields of `event` without those that it does not tell; a loss that was not finite is null."""
    fields = msgspec.structs.asdict(event)
    return {name: value for name, value in fields.items() if value is not None or name == "loss"}


def _config(values: msgspec.Struct) -> dict[str, Any]:
    """What was sent, under the names of Python and TOML instead of the wire's."""
    return {
        name: _config(value) if isinstance(value, msgspec.Struct) else value
        for name, value in msgspec.structs.asdict(values).items()
        if value is not msgspec.UNSET
    }


def _step_of(line: bytes) -> int | None:
    try:
        return msgspec.json.decode(line, type=_StepOfRecord).step
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True
