"""Reads the record of a run: runs, steps, completions, evaluations, all as typed rows.

Nothing is written and no file is migrated: a file of any age is read as it is, and what it lacks is
`None`. Long lists are read as keys first, then a page of rows for the keys that are visible.
"""

from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from grpo_tui.record import database_parse as parse
from grpo_tui.record import database_rows as rows
from grpo_tui.record import database_sql as sql
from grpo_tui.record.database_connection import Connection, RecordError, Row
from grpo_tui.record.record_files import is_finished, is_written

__all__ = ["DatabaseReader", "RecordError"]

_TABLES = ("training_runs", "training_steps", "generations", "tool_calls", "evaluations")


class DatabaseReader:
    """The questions of the dashboard to one record. Each raises `RecordError` when it cannot."""

    def __init__(self, connection: Connection, tables: sql.Tables) -> None:
        self._connection = connection
        self._tables = tables

    @classmethod
    async def open(cls, path: Path, run_folder: Path | None = None) -> Self:
        """Opens the record at `path`; it must be closed again.

        `run_folder` is that of the run in hand, whose record may lie elsewhere.
        """
        connection = await Connection.open(path, run_folder)
        try:
            columns = {table: await connection.columns(table) for table in _TABLES}
            for table in ("training_steps", "generations"):
                if not columns[table]:
                    raise RecordError(f"{path}: lacks the table {table}; it is no run's record")
        except BaseException:
            await connection.close()
            raise
        return cls(connection, sql.Tables(columns))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is running and lets go of the file."""
        await self._connection.close()

    @property
    def path(self) -> Path:
        return self._connection.path

    @property
    def run_folder(self) -> Path | None:
        return self._connection.run_folder

    @property
    def milliseconds(self) -> float:
        """How long the last question took."""
        return self._connection.milliseconds

    async def is_outdated(self) -> bool:
        """The run has ended or begun again since this was opened: open it anew."""
        connection = self._connection
        is_settled = is_finished(self.path, self.run_folder)
        if is_settled and not connection.immutable:
            await connection.look_for_running()
        return connection.immutable != (is_settled and not connection.is_suspect)

    async def data_version(self) -> int:
        """Changes when another connection has written."""
        version: int = (await self._connection.fetch("PRAGMA data_version"))[0][0]
        return version

    async def runs(self) -> list[rows.RunRow]:
        """All runs, the one started last first. One that nobody runs any more has crashed."""
        found = [parse.run(row) for row in await self._ask(sql.runs(self._tables))]
        alive = is_written(self.path, self.run_folder)
        honest: list[rows.RunRow] = []
        for run in found:
            if run.is_live and not alive:
                run = replace(run, status="crashed")
            elif run.is_live:
                # A folder has one trainer, which is busy with the run that began last.
                alive = False
            honest.append(run)
        return honest

    async def step_ids(self, run_id: str, *, newest_first: bool = True) -> "array[int]":
        """The keys of a run's steps."""
        return await self._keys(sql.step_ids(run_id, newest_first=newest_first))

    async def steps(self, ids: Sequence[int]) -> dict[int, rows.StepRow]:
        """A page of steps, by key."""
        found = [
            parse.step(row) for row in await self._ask(sql.steps_by_id(self._tables, tuple(ids)))
        ]
        return {step.id: step for step in found}

    async def step_series(
        self, run_id: str, after_step: int = -1
    ) -> AsyncGenerator[list[rows.StepRow], None]:
        """Steps after `after_step`, oldest first, in chunks: what charts are restored from."""
        question = sql.steps_after(self._tables, run_id, after_step)
        async with aclosing(self._stream(question)) as chunks:
            async for chunk in chunks:
                yield [parse.step(row) for row in chunk]

    async def generation_ids(
        self, run_id: str, query: rows.GenerationQuery
    ) -> AsyncGenerator["array[int]", None]:
        """The keys of the completions that `query` selects, in its order, in chunks."""
        question = sql.generation_ids(self._tables, run_id, query)
        async with aclosing(self._stream(question)) as chunks:
            async for chunk in chunks:
                yield array("q", (row[0] for row in chunk))

    async def generations(self, ids: Sequence[int]) -> dict[int, rows.GenerationRow]:
        """A page of completions as lists show them, by key."""
        question = sql.generations_by_id(self._tables, tuple(ids))
        found = [parse.generation_row(row) for row in await self._ask(question)]
        return {generation.id: generation for generation in found}

    async def generation(self, generation_id: int) -> rows.GenerationDetail | None:
        """One completion whole, with its tool calls; `None` when it is there no longer."""
        found = await self._ask(sql.generation(self._tables, generation_id))
        if not found:
            return None
        calls: list[Row] = []
        if self._tables.has("tool_calls"):
            calls = await self._ask(sql.tool_calls(self._tables, generation_id))
        return parse.generation(found[0], calls)

    async def evaluations(self, run_id: str) -> list[rows.EvaluationRow]:
        """A run's evaluations, oldest first."""
        if not self._tables.has("evaluations"):
            return []
        return [parse.evaluation(row) for row in await self._ask(sql.evaluations(run_id))]

    async def counts(self, run_id: str) -> tuple[int, int]:
        """How many steps and completions a run has."""
        steps, generations = (await self._ask(sql.counts(run_id)))[0]
        return steps, generations

    async def _ask(self, question: sql.Question) -> list[Row]:
        return await self._connection.fetch(question.sql, question.values)

    def _stream(self, question: sql.Question) -> AsyncGenerator[list[Row], None]:
        return self._connection.stream(question.sql, question.values)

    async def _keys(self, question: sql.Question) -> "array[int]":
        keys = array("q")
        async with aclosing(self._stream(question)) as chunks:
            async for chunk in chunks:
                keys.extend(row[0] for row in chunk)
        return keys
