"""Where the dashboard keeps files of its own: never in a run's folder."""

import os
from pathlib import Path


def state_dir() -> Path:
    """Folder for crash reports and remembered view states, by the XDG rule. Not created here."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # The rule says that a relative path is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return root / "grpo-tui"
