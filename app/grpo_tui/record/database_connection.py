"""One read-only connection to a record: how it is opened, asked, cancelled and closed.

A record that somebody may write to is opened with `mode=ro`; one that is finished also with
`immutable=1`, which creates no file beside it and works in a read-only folder.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiosqlite

from grpo_protocol.database import SCHEMA_VERSION
from grpo_tui.record import record_files

Row = tuple[Any, ...]
_Result = TypeVar("_Result")

BUSY_TIMEOUT_MS = 500
CHUNK_ROWS = 5_000


class RecordError(Exception):
    """A record cannot be read; the text is one line for the screen."""


class Connection:
    """Asks one question at a time, in aiosqlite's thread; a cancelled question is interrupted."""

    def __init__(
        self,
        path: Path,
        database: aiosqlite.Connection,
        immutable: bool,
        run_folder: Path | None = None,
    ) -> None:
        self.path = path
        self.run_folder = run_folder
        self.immutable = immutable
        self.milliseconds = 0.0
        """How long the last question took."""
        self._database = database
        self._turn = asyncio.Lock()
        self._closed = False
        self._is_running = False

    @classmethod
    async def open(cls, path: Path, run_folder: Path | None = None) -> Self:
        """Opens the record at `path`, and refuses what is none or is from a newer version.

        `run_folder` is that of the run in hand, where it is known.
        """
        path = path.absolute()
        immutable = await asyncio.to_thread(_check_file, path, run_folder)
        connection = await cls._open(path, immutable, run_folder)
        if immutable and connection.is_suspect:
            await connection.close()
            connection = await cls._open(path, False, run_folder)
        return connection

    @classmethod
    async def _open(cls, path: Path, immutable: bool, run_folder: Path | None) -> Self:
        options = "mode=ro&immutable=1" if immutable else "mode=ro"
        pending = aiosqlite.connect(
            f"file:{quote(str(path))}?{options}", uri=True, isolation_level=None
        )
        # An unclosed connection keeps a thread, and with it the process, alive; the screen may end
        # in ways that leave no chance to close.
        pending._thread.daemon = True
        try:
            database = await pending
        except sqlite3.Error as error:
            raise RecordError(_one_line(path, error)) from error
        if not immutable:
            record_files.opened(path)
        connection = cls(path, database, immutable, run_folder)
        try:
            await connection._prepare()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _prepare(self) -> None:
        self._database.text_factory = _decode
        await self.fetch("PRAGMA query_only = 1")
        await self.fetch(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        version = (await self.fetch("PRAGMA user_version"))[0][0]
        if version > SCHEMA_VERSION:
            raise RecordError(
                f"{self.path}: written by a newer version (schema {version}, known here: "
                f"{SCHEMA_VERSION}); upgrade grpo-tui"
            )
        if not await self.columns("training_runs"):
            raise RecordError(f"{self.path}: holds no training runs; it is no record of a trainer")
        await self.look_for_running()

    async def look_for_running(self) -> None:
        """Notes whether a run is said to run now."""
        running = "SELECT EXISTS (SELECT 1 FROM training_runs WHERE status = 'running')"
        self._is_running = bool((await self.fetch(running))[0][0])

    @property
    def is_suspect(self) -> bool:
        """A run is said to run, and there is a log: its trainer may have its lock elsewhere."""
        return self._is_running and record_files.has_log(self.path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def fetch(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """All rows of a question that has few."""
        async with self._turn:
            started = time.perf_counter()
            task = asyncio.ensure_future(self._database.execute_fetchall(sql, parameters))
            rows = await self._finish(task)
            self.milliseconds = (time.perf_counter() - started) * 1000
            return [tuple(row) for row in rows]

    async def stream(
        self, sql: str, parameters: Sequence[object] = ()
    ) -> AsyncGenerator[list[Row], None]:
        """The rows of a question that has many, in chunks; other questions go in between."""
        started = time.perf_counter()
        async with self._turn:
            opening = asyncio.ensure_future(self._database.execute(sql, parameters))
            try:
                cursor = await self._finish(opening)
            except asyncio.CancelledError:
                # An interrupt holds for as long as any cursor of the connection is open.
                if not opening.cancelled() and opening.exception() is None:
                    await opening.result().close()
                raise
        try:
            while True:
                async with self._turn:
                    rows = await self._finish(asyncio.ensure_future(cursor.fetchmany(CHUNK_ROWS)))
                self.milliseconds = (time.perf_counter() - started) * 1000
                if not rows:
                    return
                yield [tuple(row) for row in rows]
        finally:
            # The connection may have been closed between two chunks.
            with suppress(ValueError, sqlite3.Error):
                await cursor.close()

    async def columns(self, table: str) -> frozenset[str]:
        """The columns that `table` has in this file; none when there is no such table."""
        rows = await self.fetch(f"PRAGMA table_info({table})")
        return frozenset(str(row[1]) for row in rows)

    async def close(self) -> None:
        """Ends a running question, closes, and tidies up what only readers have left behind."""
        if self._closed:
            return
        self._closed = True
        await self._interrupt()
        try:
            with suppress(sqlite3.Error, ValueError):
                await self._database.close()
        finally:
            if not self.immutable:
                record_files.closed(self.path)

    async def _interrupt(self) -> None:
        with suppress(sqlite3.Error, ValueError):
            await self._database.interrupt()

    async def _finish(self, task: "asyncio.Future[_Result]") -> _Result:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # aiosqlite's thread would go on until the query ends by itself.
            await self._interrupt()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()
            raise
        except (sqlite3.Error, ValueError) as error:
            raise RecordError(_one_line(self.path, error)) from error


def _check_file(path: Path, run_folder: Path | None) -> bool:
    """Whether the record at `path` is finished; refuses what can be none."""
    try:
        if path.is_file():
            return record_files.is_finished(path, run_folder)
        if path.is_dir():
            raise RecordError(f"{path}: is a folder; name an outputs.db")
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: {error}") from error
    raise RecordError(f"{path}: there is no such file")


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _one_line(path: Path, error: Exception) -> str:
    # The low byte is the kind of an error, the rest says more about it.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN and not os.access(path.parent, os.W_OK):
        return (
            f"{path}: cannot be opened in a read-only folder, because its run did not end "
            "properly; copy the whole folder to a place where you may write"
        )
    said = {
        sqlite3.SQLITE_NOTADB: "is no SQLite database",
        sqlite3.SQLITE_CORRUPT: "is damaged; `sqlite3 FILE .recover` may save what is left of it",
        sqlite3.SQLITE_BUSY: "is locked by another program",
        sqlite3.SQLITE_LOCKED: "is locked by another program",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened; are you allowed to read it?",
    }.get(code)
    return f"{path}: {said or error}"
