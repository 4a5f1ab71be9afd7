"""Reads a descriptor to its end without ever making its writer wait."""

import os
import select
import threading
from collections.abc import Callable

SECONDS = 60
"""Far more than anything here takes; a hang fails the test instead of blocking it."""


class StreamReader:
    """Drains a descriptor in a thread until its end or until `close`."""

    def __init__(self, fd: int, on_chunk: Callable[[bytes], None] = lambda chunk: None) -> None:
        self.data = b""
        self._fd = fd
        self._on_chunk = on_chunk
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits for the end of the stream."""
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "somebody still holds the other end"

    def close(self) -> None:
        """Ends reading now."""
        if self._thread.is_alive():
            os.write(self._wake_write, b"x")
            self._thread.join()

    def _drain(self) -> None:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while self._wake_read not in {fd for fd, _ in poller.poll()}:
            chunk = os.read(self._fd, 1 << 16)
            if not chunk:
                break
            self.data += chunk
            self._on_chunk(chunk)
        for fd in (self._fd, self._wake_read, self._wake_write):
            os.close(fd)
