"""The report of a crash of the dashboard itself.

It holds the traceback without local variables, since those hold prompts and settings, and nothing
that looks like a credential.
"""

import os
import platform
import re
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Final

from grpo_tui.paths import state_dir
from grpo_tui.sanitize import clean

_MESSAGE_LIMIT: Final = 500
_CREDENTIAL = re.compile(
    r"\b(?:hf|sk|ghp|gho|github_pat|xox[bap])[-_][A-Za-z0-9_-]{8,}"
    r"|(?i:\b(?:token|secret|password|api[_-]?key)\b\s*[=:]\s*)\S+"
)


def crash_text(error: BaseException) -> str:
    """The report on `error` and what caused it."""
    lines = [
        f"grpo-tui {version('grpo-tui')}, textual {version('textual')}, "
        f"Python {platform.python_version()}, {platform.platform()}",
        time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "",
        *_traceback_lines(error),
    ]
    return redact("\n".join(lines)) + "\n"


def redact(text: str) -> str:
    """`text` without credentials and without the name of the home folder."""
    home = str(Path.home())
    if len(home) > 1:
        text = text.replace(home, "~")
    return _CREDENTIAL.sub("<redacted>", clean(text))


def write_crash_report(error: BaseException) -> Path | None:
    """Writes the report, readable by its owner only; None when that is not possible."""
    folder = state_dir()
    path = folder / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(crash_text(error))
    except OSError:
        return None
    return path


def crash_line(error: BaseException, report: Path | None) -> str:
    """What the person reads when the screen is gone."""
    told = redact(str(error))[:_MESSAGE_LIMIT].replace("\n", " ")
    where = f"report: {report}" if report else "no report could be written"
    return (
        f"grpo-tui has crashed ({type(error).__name__}: {told}); {where}. "
        "A trainer that was running goes on without it."
    )


def _traceback_lines(error: BaseException) -> list[str]:
    chain = traceback.TracebackException.from_exception(error, capture_locals=False)
    return "".join(part[:20_000] for part in chain.format(chain=True)).splitlines()
