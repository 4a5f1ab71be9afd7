"""Real trainers as processes: forked in milliseconds, or started afresh as people start them."""

import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar
from unittest.mock import patch

from grpo_protocol import Event, LineSplitter, Malformed, Oversized, decode_event
from grpo_protocol.messages import Complete, Failed
from stream_reader import SECONDS, StreamReader

Found = TypeVar("Found", bound=Event)
Streams = tuple[Connection, Connection, Connection]


class TrainerProcess:
    """A running trainer: what it says, and ways to talk to it."""

    def __init__(self, process: "_Process", stdin: int, stdout: int, stderr: int) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process
        self._stdin: int | None = stdin
        self._news = threading.Condition()
        self._events: list[Event] = []
        self._strays: list[str] = []
        self._lines = LineSplitter()
        self._out = StreamReader(stdout, self._take)
        self._err = StreamReader(stderr)

    def send(self, *lines: str) -> None:
        """Writes whole lines in one piece."""
        self.send_bytes("".join(f"{line}\n" for line in lines).encode())

    def send_bytes(self, data: bytes) -> None:
        assert self._stdin is not None
        os.write(self._stdin, data)

    def close_stdin(self) -> None:
        """The end of its input."""
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    def close_stdout(self) -> None:
        """Stops reading, as a dashboard that has died."""
        self._out.close()

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def events(self) -> list[Event]:
        """The events so far. Fails when stdout held anything else."""
        with self._news:
            assert not self._strays, self._strays
            return list(self._events)

    def all(self, kind: type[Found]) -> list[Found]:
        """The events of one kind so far."""
        return [event for event in self.events() if isinstance(event, kind)]

    def wait_for(
        self,
        kind: type[Found],
        matches: Callable[[Found], bool] = lambda event: True,
        timeout: float = SECONDS,
    ) -> Found:
        """The first event of that kind that matches, past or to come."""

        def found() -> Found | None:
            events = (event for event in self._events if isinstance(event, kind))
            return next(filter(matches, events), None)

        def is_over() -> bool:
            return found() is not None or self._ended()

        with self._news:
            self._news.wait_for(is_over, timeout)
            event = found()
        assert event is not None, f"no such {kind.__name__}: {self}"
        return event

    def wait(self, timeout: float = SECONDS) -> int:
        """The exit code, once the process has ended and its output is read."""
        code = self._process.wait(timeout)
        assert code is not None, f"still running: {self}"
        self._out.join()
        self._err.join()
        return code

    def end(self) -> None:
        """Kills what is left of it; for the end of a test."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(SECONDS)
        self.close_stdin()
        self._out.close()
        self._err.close()

    @property
    def stdout(self) -> str:
        return self._out.data.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.data.decode(errors="replace")

    def __str__(self) -> str:
        return f"pid {self.pid}\nstdout: {self.stdout[-3000:]}\nstderr: {self.stderr[-3000:]}"

    def _ended(self) -> bool:
        return any(isinstance(event, Complete | Failed) for event in self._events)

    def _take(self, chunk: bytes) -> None:
        with self._news:
            for line in self._lines.feed(chunk):
                event = None if isinstance(line, Oversized) else decode_event(line)
                if event is None or isinstance(event, Malformed):
                    self._strays.append(str(line))
                else:
                    self._events.append(event)
            self._news.notify_all()


class StartTrainer(Protocol):
    """Starts `grpo-trainer WORDS` in the test's own folder."""

    def __call__(
        self,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        fresh: bool = False,
    ) -> TrainerProcess: ...


def training_words(folder: Path, model: Path, /, **settings: Any) -> list[str]:
    """A small `train` command whose run lies in `folder/run`; `settings` win."""
    data, reward = folder / "data.jsonl", folder / "reward.py"
    if not data.exists():
        rows = [{"prompt": f"Compute {n} + {n}.", "answer": str(2 * n)} for n in range(6)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not reward.exists():
        reward.write_text(
            "def letters(completions, **_):\n"
            "    return [sum(char.isalpha() for char in text) / 10 for text in completions]\n"
        )
    values: dict[str, Any] = {
        "output_dir": folder / "run",
        "model": model,
        "data": data,
        "reward": reward,
        "max_completion_length": 6,
        "group_size": 4,
        "batch_size": 2,
        "max_steps": 4,
        **settings,
    }
    return ["train", *(f"{key}={value}" for key, value in values.items())]


def start_trainer(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> TrainerProcess:
    """`grpo-trainer WORDS` in a fork of a process that has imported everything already."""
    theirs, ours = _pipes()
    process = _fork_server().Process(
        target=_trainer_main, args=(theirs, list(words), cwd, dict(env or {})), daemon=True
    )
    process.start()
    _close(theirs)
    return TrainerProcess(_Forked(process), *ours)


def start_fresh_trainer(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
) -> TrainerProcess:
    """`python -P -m grpo_trainer WORDS`, as the dashboard starts it."""
    theirs, ours = _pipes()
    stdin, stdout, stderr = (stream.fileno() for stream in theirs)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "grpo_trainer", *words],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    _close(theirs)
    return TrainerProcess(_Spawned(process), *ours)


@functools.cache
def _fork_server() -> ForkServerContext:
    """Starts it: it has imported what a trainer imports, and has used nothing of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer_preload"])
    before = os.environ.get("PYTHONPATH", "")
    # The server does not get our import path, and passes over a module that it cannot import.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        forkserver.ensure_running()
    finally:
        os.environ["PYTHONPATH"] = before
    return context


def _trainer_main(streams: Streams, words: list[str], cwd: Path, env: dict[str, str]) -> None:
    """Runs in the fork."""
    os.setsid()
    for fd, stream in enumerate(streams):
        os.dup2(stream.fileno(), fd)
    _close(streams)
    os.environ.update(env)
    os.chdir(cwd)
    from grpo_trainer import blas
    from grpo_trainer.cli import main
    from trainer_preload import BLAS

    # Asked again, it would say that mlx was imported first, and measure how bad that is.
    with patch.object(blas, "load", return_value=BLAS):
        code = main(words)
    sys.exit(code)


def _pipes() -> tuple[Streams, tuple[int, int, int]]:
    """The child's ends of stdin, stdout and stderr, which can travel, and our own ends."""
    (stdin, write), (read, stdout), (read_errors, stderr) = (Pipe(False) for _ in range(3))
    ours = (os.dup(write.fileno()), os.dup(read.fileno()), os.dup(read_errors.fileno()))
    _close((write, read, read_errors))
    return (stdin, stdout, stderr), ours


def _close(streams: Streams) -> None:
    for stream in streams:
        stream.close()


class _Process(Protocol):
    """What a forked and a spawned child have in common."""

    @property
    def pid(self) -> int | None: ...

    def wait(self, timeout: float) -> int | None: ...


class _Forked:
    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


class _Spawned:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, timeout: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The records of the log file in the folder of a run."""
    (path,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]
