"""Copies text where the person will find it, and says only what is known to have happened."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Final

from textual.app import App

_TOOLS: Final[tuple[tuple[str, Sequence[str]], ...]] = (
    ("", ("pbcopy",)),
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
)
_SECONDS: Final = 2.0


def copy_text(app: App[object], text: str) -> str:
    """Copies `text`; returns what happened, in one line.

    A native tool tells whether it worked. A terminal does not, so its copy is called a request and
    the text is also written to a file.
    """
    if (tool := _native_tool()) is not None:
        try:
            subprocess.run(
                tool,
                input=text.encode(),
                check=True,
                timeout=_SECONDS,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            pass
        else:
            return f"copied {len(text):,} characters"
    app.copy_to_clipboard(text)
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="grpo-tui-", suffix=".txt", delete=False
        ) as file:
            file.write(text)
    except OSError as error:
        return f"asked the terminal to copy {len(text):,} characters; no file: {error.strerror}"
    return f"asked the terminal to copy; also in {file.name}"


def _native_tool() -> Sequence[str] | None:
    if "SSH_CONNECTION" in os.environ:
        return None
    for variable, command in _TOOLS:
        if (not variable or variable in os.environ) and shutil.which(command[0]):
            return command
    return None
