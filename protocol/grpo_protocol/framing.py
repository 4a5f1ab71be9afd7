"""Lines out of byte chunks, with a cap on what one line may hold.

`asyncio.StreamReader.readline` raises above 64 KiB and blocks the loop while lines are buffered;
`str.splitlines` also cuts at U+2028 and others. So: read chunks, split at newlines only.
"""

from collections.abc import Iterator

MAX_RECORD_BYTES = 8 * 1024 * 1024


class Oversized(int):
    """Bytes of a line that was longer than the cap and was skipped."""


class LineSplitter:
    """Feeds on chunks of any size and yields whole lines without their newline.

    A line above `max_bytes` is skipped to its newline and yielded as `Oversized`, so that one
    runaway line costs neither memory nor the lines after it.
    """

    def __init__(self, max_bytes: int = MAX_RECORD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._held = 0
        self._skipped = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | Oversized]:
        """Takes the next chunk; yields each line that it completes."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            yield self._close(chunk[start:end])
            start = end + 1
        self._hold(chunk[start:])

    def flush(self) -> Iterator[bytes | Oversized]:
        """At the end of the stream: yields a last line that had no newline."""
        if self._held or self._skipped:
            yield self._close(b"")

    def _hold(self, piece: bytes) -> None:
        if self._skipped:
            self._skipped += len(piece)
        elif self._held + len(piece) > self._max_bytes:
            self._skipped = self._held + len(piece)
            self._parts, self._held = [], 0
        elif piece:
            self._parts.append(piece)
            self._held += len(piece)

    def _close(self, piece: bytes) -> bytes | Oversized:
        self._hold(piece)
        line: bytes | Oversized = (
            Oversized(self._skipped) if self._skipped else b"".join(self._parts)
        )
        self._parts, self._held, self._skipped = [], 0, 0
        return line
