"""Whether there is a terminal for a full-screen view, and what it can be sent."""

import codecs
import sys


def terminal_problem() -> str | None:
    """Why no full-screen view can be shown here, or None."""
    for name, stream in (
        ("stdin", sys.__stdin__),
        ("stdout", sys.__stdout__),
        ("stderr", sys.__stderr__),
    ):
        if stream is None or not stream.isatty():
            return f"{name} is not a terminal"
    return None


def needs_ascii() -> bool:
    """The terminal's encoding cannot carry block and Braille characters."""
    encoding = getattr(sys.__stderr__, "encoding", None) or "ascii"
    return codecs.lookup(encoding).name not in {"utf-8", "utf-16", "utf-32"}
