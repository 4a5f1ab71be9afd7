"""One trainer process: its start, its three pipes, its end.

`subprocess.Popen` instead of asyncio's wrapper, because that one kills the process when it is
closed or collected, and a trainer must survive its dashboard.
"""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal

from grpo_tui.child.child_reader import read_stream, stderr_items, stdout_items
from grpo_tui.child.command_pipe import CommandPipe
from grpo_tui.notices import Item, StreamEnded

_CHILD_ENV: Final = {
    "GRPO_TUI_MODE": "1",
    "MLX_TUI_MODE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
_STREAM_GRACE: Final = 1.0
"""Seconds between the end of a pipe and that of the process that are no news."""
_DRAIN_TURN: Final = 0.05
_DRAIN_IDLE_TURNS: Final = 6
_DRAIN_MOST_TURNS: Final = 100


class Child:
    """A running trainer. Made by `spawn`; `attach` starts reading; `finished` waits for its end."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        emit: Callable[[Item], None],
        on_lost: Callable[[int, str], None],
    ) -> None:
        assert process.stdin is not None
        self._process = process
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self._received = 0
        """Chunks and items so far: tells whether something still comes."""
        self._transports: list[asyncio.ReadTransport] = []
        self._readers: list[asyncio.Task[None]] = []
        self.commands = CommandPipe(process.stdin, on_lost)

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        emit: Callable[[Item], None],
        on_lost: Callable[[int, str], None],
    ) -> "Child":
        """Starts `argv` in a session of its own. Raises `OSError` when that cannot be.

        Nothing is emitted before `attach`, so that the start can be told before all else.
        """
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**env, **_CHILD_ENV},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        return cls(process, emit, on_lost)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._exit.done()

    def signal_group(self, number: signal.Signals) -> None:
        """Signals the trainer and whatever it has started in its session."""
        if self.alive:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return

    async def exited(self, timeout: float | None = None) -> bool:
        """Waits until the process is gone, at most `timeout` seconds."""
        done, _ = await asyncio.wait({self._exit}, timeout=timeout)
        return bool(done)

    async def finished(self) -> int:
        """Waits for the end of the process and for all that it wrote; returns its exit status.

        Raises what a handler of events has raised, as soon as it does.
        """
        ends: set[asyncio.Future[Any]] = {self._exit, self._broken}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not self._broken.done():
            await self._drain()
        if self._broken.done():
            self._broken.result()
        code = self._exit.result()
        self.release()
        return code

    def release(self) -> None:
        """Closes our ends of the pipes; a living process goes on."""
        self.commands.close()
        for reader in self._readers:
            reader.cancel()
        for transport in self._transports:
            transport.close()

    async def attach(self) -> None:
        """Starts reading both pipes and waiting for the end."""
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        threading.Thread(target=self._await_exit, name="trainer-exit", daemon=True).start()
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            stream = await self._open(pipe)
            kind: Literal["stdout", "stderr"] = "stdout" if name == "stdout" else "stderr"
            reader = asyncio.create_task(self._read(kind, stream), name=f"trainer-{name}")
            reader.add_done_callback(self._reader_ended)
            self._readers.append(reader)

    async def _open(self, pipe: IO[bytes]) -> asyncio.StreamReader:
        stream = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(
            lambda: _CountedProtocol(stream, self._count), pipe
        )
        self._transports.append(transport)
        return stream

    def _count(self) -> None:
        self._received += 1

    async def _read(self, name: Literal["stdout", "stderr"], stream: asyncio.StreamReader) -> None:
        def emit(item: Item) -> None:
            self._count()
            self._emit(item)

        await read_stream(stream, stdout_items if name == "stdout" else stderr_items, emit)
        if not await self.exited(_STREAM_GRACE):
            self._emit(StreamEnded(name))

    async def _drain(self) -> None:
        """A grandchild may hold the pipes open: wait only while something still comes.

        Counted in turns of the event loop, each of which looks at the pipes, because on a busy
        machine time passes without a look.
        """
        idle = 0
        for _ in range(_DRAIN_MOST_TURNS):
            before = self._received
            _, pending = await asyncio.wait(self._readers, timeout=_DRAIN_TURN)
            idle = idle + 1 if self._received == before else 0
            if not pending or idle >= _DRAIN_IDLE_TURNS:
                return

    def _reader_ended(self, reader: "asyncio.Task[None]") -> None:
        # A task that dies unseen would leave the pipe unread and the trainer blocked.
        if not reader.cancelled() and (error := reader.exception()) and not self._broken.done():
            self._broken.set_exception(error)

    def _await_exit(self) -> None:
        """In a thread of its own that nobody waits for, since a detached trainer may outlive us."""
        code = self._process.wait()
        try:
            self._loop.call_soon_threadsafe(self._set_exit, code)
        except RuntimeError:
            # The loop is closed: nobody wants to know any more.
            return

    def _set_exit(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)


class _CountedProtocol(asyncio.StreamReaderProtocol):
    """Tells of each chunk that comes."""

    def __init__(self, stream: asyncio.StreamReader, on_chunk: Callable[[], None]) -> None:
        super().__init__(stream)
        self._on_chunk = on_chunk

    def data_received(self, data: bytes) -> None:
        self._on_chunk()
        super().data_received(data)
