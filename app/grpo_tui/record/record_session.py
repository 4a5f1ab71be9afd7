"""The record that a view has open: the same reader until the run ends or begins again."""

from pathlib import Path

from grpo_tui.record.database import DatabaseReader


class RecordSession:
    """Holds at most one open record; one task at a time may call it."""

    def __init__(self) -> None:
        self._openings = 0
        self.reader: DatabaseReader | None = None

    async def at(self, path: Path, run_folder: Path | None = None) -> DatabaseReader:
        """A reader of the record at `path`."""
        reader = self.reader
        if reader is not None and not await reader.is_outdated():
            wanted = (path.absolute(), run_folder)
            if (reader.path, reader.run_folder) == wanted:
                return reader
        await self.close()
        self.reader = await DatabaseReader.open(path, run_folder)
        self._openings += 1
        return self.reader

    async def stamp(self) -> tuple[int, int]:
        """Differs whenever the open record may hold something new."""
        if self.reader is None:
            return self._openings, 0
        return self._openings, await self.reader.data_version()

    async def close(self) -> None:
        """Lets go of the record, if one is open."""
        reader, self.reader = self.reader, None
        if reader is not None:
            await reader.close()
