"""The reward worker as a process: start, frames, what it prints, and its end.

It is spawned with a session and process group of its own and inherits no descriptor but its two
pipes, so a Ctrl-C at the terminal does not reach it and ending its group ends all it has started.
"""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import IO

import msgspec

from grpo_trainer.output.captured_output import OutputLines
from grpo_trainer.rewards.frames import Channel, PeerGone, Reply, decode_reply
from grpo_trainer.rewards.types import OutputCallback, OutputStream

_CHUNK_BYTES = 1 << 16
_GRACE_SECONDS = 3.0
_OUTPUT_SECONDS = 2.0
_LOOK_SECONDS = 0.01


class WorkerProcess:
    """One started worker. Not for several threads at once."""

    def __init__(self, on_output: OutputCallback) -> None:
        self._on_output = on_output
        self._reaped = threading.Event()
        request_read, requests = os.pipe()
        replies, reply_write = os.pipe()
        self._open_fds = {requests, replies}
        started: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()
        # On Linux the worker dies with the thread that started it, so that thread has to stay.
        self._keeper = threading.Thread(
            target=self._keep, args=(request_read, reply_write, started), daemon=True
        )
        self._keeper.start()
        outcome = started.get()
        for fd in (request_read, reply_write):
            os.close(fd)
        if isinstance(outcome, OSError):
            self._close_fds(requests, replies)
            raise outcome
        self._process = outcome
        self._requests, self._replies = requests, replies
        self._channel = Channel(replies, requests, self.lives)

    def lives(self) -> bool:
        """Whether it still runs. Does not reap it: its group keeps its number until `end`."""
        if self._process.returncode is not None:
            return False
        if not hasattr(os, "waitid"):
            return self._process.poll() is None
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, flags) is None
        except ChildProcessError:
            return False

    def send(self, payload: bytes, deadline: float | None) -> None:
        """Writes a request. Raises `PeerGone` or `TimeoutError`."""
        self._channel.send(payload, deadline)

    def receive(self, deadline: float | None) -> Reply:
        """The next reply. Raises `PeerGone` or `TimeoutError`."""
        try:
            return decode_reply(self._channel.receive(deadline))
        except msgspec.MsgspecError as error:
            raise PeerGone from error

    def close(self) -> None:
        """Lets it exit by itself, then ends what is left."""
        if self._process.returncode is not None:
            return
        self._close_fds(self._requests)
        with suppress(PeerGone, TimeoutError):
            while True:
                self.receive(time.monotonic() + _GRACE_SECONDS)
        self.end()

    def end(self, grace: float = 0.0) -> str:
        """Ends the whole group, waits for its output, and says how the worker came to its end.

        A dying process closes its pipes a moment before it is dead: `grace` is that moment.
        """
        deadline = time.monotonic() + grace
        while self.lives() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        died = not self.lives()
        if self._process.returncode is None:
            # EPERM is macOS's answer for a group of zombies.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._close_fds(self._requests, self._replies)
        self._reaped.set()
        self._keeper.join(_OUTPUT_SECONDS)
        if not died:
            return "lost its connection to the trainer"
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def _close_fds(self, *fds: int) -> None:
        for fd in self._open_fds.intersection(fds):
            os.close(fd)
            self._open_fds.remove(fd)

    def _keep(
        self,
        request_fd: int,
        reply_fd: int,
        started: "SimpleQueue[subprocess.Popen[bytes] | OSError]",
    ) -> None:
        command = [sys.executable, "-P", "-m", "grpo_trainer.rewards.worker"]
        try:
            process = subprocess.Popen(
                [*command, str(request_fd), str(reply_fd), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(request_fd, reply_fd),
                start_new_session=True,
            )
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            self._drain({"stdout": process.stdout, "stderr": process.stderr})
        self._reaped.wait()

    def _drain(self, streams: dict[OutputStream, IO[bytes]]) -> None:
        with selectors.DefaultSelector() as selector:
            for name, stream in streams.items():
                selector.register(stream, selectors.EVENT_READ, (name, OutputLines()))
            while selector.get_map():
                for key, _ in selector.select():
                    name, lines = key.data
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                    for line in lines.feed(chunk) if chunk else lines.flush():
                        self._deliver(name, line)
                    if not chunk:
                        selector.unregister(key.fileobj)

    def _deliver(self, stream: OutputStream, line: str) -> None:
        # The pipe has to be read on, or the worker would block in its next print.
        with suppress(Exception):
            self._on_output(stream, line)
