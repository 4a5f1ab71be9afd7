"""Finds recorded runs at or below a path."""

import os
from dataclasses import dataclass
from pathlib import Path

from grpo_protocol.database import DATABASE_NAME
from grpo_tui.record.record_files import signature

MAX_DEPTH = 3
"""Levels searched below a given folder: `outputs/NAME` of a project, and one to spare."""
MAX_FOLDERS = 20_000
"""Folders looked at before the search ends, so that a home folder does not take for ever."""
_NEVER_ENTERED = frozenset({"node_modules", "site-packages", "__pycache__"})


class NoSuchPathError(ValueError):
    """There is nothing at the given path."""


@dataclass(frozen=True)
class FoundDatabase:
    """One record; its signature changes whenever somebody writes to it."""

    path: Path
    signature: tuple[int, ...]

    @property
    def written_at(self) -> int:
        return self.signature[0]


def find_databases(path: Path, run_folder: Path | None = None) -> list[FoundDatabase]:
    """The records at or below `path`, the one written to last first.

    `path` may be a record, a run folder, or a parent such as `outputs/`; folders that cannot be
    read are passed over.
    """
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        raise NoSuchPathError(f"{path}: {error}") from error
    if not exists:
        raise NoSuchPathError(f"{path}: no such file or folder; name a run folder or outputs.db")
    databases = _search(path) if is_folder else [path]
    found = [FoundDatabase(database, signature(database, run_folder)) for database in databases]
    return sorted(found, key=lambda item: (-item.written_at, str(item.path)))


def _search(root: Path) -> list[Path]:
    """Breadth first, so that a wide tree is cut at its far end."""
    databases: list[Path] = []
    level = [root]
    looked_at = 0
    for depth in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            looked_at += 1
            if looked_at > MAX_FOLDERS:
                return databases
            has_record, children = _look_into(folder)
            if has_record:
                databases.append(folder / DATABASE_NAME)
            if depth < MAX_DEPTH:
                below.extend(children)
        level = below
    return databases


def _look_into(folder: Path) -> tuple[bool, list[Path]]:
    """Whether `folder` holds a record, and the folders in it that may hold one too."""
    children: list[Path] = []
    has_record = False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == DATABASE_NAME and entry.is_file():
                    has_record = True
                elif _may_hold_runs(entry):
                    children.append(Path(entry.path))
    except OSError:
        return has_record, []
    return has_record, sorted(children)


def _may_hold_runs(entry: "os.DirEntry[str]") -> bool:
    hidden = entry.name.startswith(".")
    return not hidden and entry.name not in _NEVER_ENTERED and entry.is_dir(follow_symlinks=False)
