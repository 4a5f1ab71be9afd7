"""What a check found, and the table that its line stands in."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Literal

from grpo_trainer.output.live_stream import LiveStream
from grpo_trainer.output.plain_text import show_controls

Verdict = Literal["ok", "warning", "FAILED"]
_SHOWN = 3
_VERDICT_WIDTH = len("warning")


@dataclass(frozen=True)
class Finding:
    """The verdict on one claim, with the numbers that it rests on, in one line."""

    verdict: Verdict
    found: str

    @classmethod
    def of(cls, is_right: bool, found: str) -> "Finding":
        """One that is either ok or not."""
        return cls("ok" if is_right else "FAILED", found)


class Table:
    """Prints lines in columns as they come: wrapped on a terminal, whole elsewhere."""

    def __init__(self, out: LiveStream, names: Sequence[str]) -> None:
        self._out = out
        self._name_width = max(map(len, names))

    def line(self, name: str, finding: Finding) -> None:
        """One row of the table."""
        start = f"{name:{self._name_width}}  {finding.verdict:{_VERDICT_WIDTH}}  "
        text = start + show_controls(finding.found)
        if self._out.isatty():
            text = textwrap.fill(
                text,
                width=max(len(start) + 20, get_terminal_size().columns),
                subsequent_indent=" " * len(start),
                drop_whitespace=True,
                break_on_hyphens=False,
            )
        self._out.write(text + "\n")


def some(names: Sequence[str]) -> str:
    """The first few of `names`, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    rest = len(names) - _SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown
