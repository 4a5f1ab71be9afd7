"""The runs at or below a path, read again only where something has changed."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from grpo_tui.record.database import DatabaseReader, RecordError
from grpo_tui.record.database_rows import RunRow
from grpo_tui.record.run_discovery import FoundDatabase, find_databases


@dataclass(frozen=True)
class RunEntry:
    """One line of the list of runs: a run, or a record that cannot be read and why."""

    database: Path
    run: RunRow | None = None
    error: str | None = None

    @property
    def key(self) -> tuple[Path, str]:
        return self.database, "" if self.run is None else self.run.id


class RunCatalog:
    """Remembers what each record held, so that many finished runs cost nothing to show."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], list[RunEntry]]] = {}

    async def read(self, path: Path, run_folder: Path | None = None) -> list[RunEntry]:
        """The runs at or below `path`, the record written to last first.

        `run_folder` is that of the run in hand, if `path` is its record.
        """
        found = await asyncio.to_thread(find_databases, path, run_folder)
        known = {item.path: await self._entries(item, run_folder) for item in found}
        self._known = known
        return [entry for _, entries in known.values() for entry in entries]

    async def _entries(
        self, found: FoundDatabase, run_folder: Path | None
    ) -> tuple[tuple[int, ...], list[RunEntry]]:
        known = self._known.get(found.path)
        # A trainer that was killed changes no file: only asking again tells that it is gone.
        if known is not None and known[0] == found.signature and not _needs_watching(known[1]):
            return known
        return found.signature, await _read(found.path, run_folder)


def _needs_watching(entries: list[RunEntry]) -> bool:
    return any(entry.error or (entry.run is not None and entry.run.is_live) for entry in entries)


async def _read(database: Path, run_folder: Path | None) -> list[RunEntry]:
    try:
        async with await DatabaseReader.open(database, run_folder) as reader:
            return [RunEntry(database, run) for run in await reader.runs()]
    except RecordError as error:
        return [RunEntry(database, error=str(error))]
