"""A text stream for people whose reader may go away at any time."""

import contextlib
import os
from typing import IO


class LiveStream:
    """Writes whole lines; once nobody reads them any more, they are discarded quietly."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream
        self.encoding: str = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Writes at once; what the encoding lacks is written as an escape."""
        if self._stream is not None:
            try:
                self._stream.write(
                    text.encode(self.encoding, "backslashreplace").decode(self.encoding)
                )
                self._stream.flush()
            except (OSError, ValueError):
                self._lose()
        return len(text)

    def flush(self) -> None:
        """Nothing to do: every write is flushed."""

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("nobody reads this stream any more")
        return self._stream.fileno()

    def isatty(self) -> bool:
        with contextlib.suppress(ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def can_redraw(self) -> bool:
        """Whether it is a terminal whose cursor can be moved."""
        return self.isatty() and os.environ.get("TERM", "") not in ("", "dumb")

    def _lose(self) -> None:
        """What the stream still holds must not raise again when the interpreter flushes it."""
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
        self._stream = None
