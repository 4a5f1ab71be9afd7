"""What the command line decided: everything the dashboard needs to start."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Mode = Literal["live", "open", "runs"]


@dataclass(frozen=True)
class RestartRule:
    """What happens when the trainer ends by itself in a way that was not asked for."""

    enabled: bool = False
    resume: bool = False
    """Add `--resume latest` (and the run's folder) to the arguments of a restart."""


NO_RESTART: Final = RestartRule()


@dataclass(frozen=True)
class LaunchPlan:
    """One start of the dashboard."""

    mode: Mode
    """`live` watches a trainer, `open` browses one recorded run, `runs` lists those of a folder."""
    argv: tuple[str, ...] = ()
    """Command of the trainer in `live` mode."""
    cwd: Path = field(default_factory=Path.cwd)
    name: str = ""
    """Shown until the trainer has told its model."""
    path: Path | None = None
    """Run folder or database in `open` mode, folder to list in `runs` mode."""
    restart: RestartRule = NO_RESTART
    ascii: bool = False
    mouse: bool = True
