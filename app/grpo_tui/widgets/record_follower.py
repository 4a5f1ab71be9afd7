"""Keeps three linked lists up to date with the records that they show."""

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from textual.content import Content

from grpo_tui.drawing.formatting import integer
from grpo_tui.record.database import DatabaseReader, RecordError
from grpo_tui.record.database_lines import run_name, safe_line
from grpo_tui.record.database_rows import GenerationDetail, GenerationQuery, GenerationRow, StepRow
from grpo_tui.record.record_session import RecordSession
from grpo_tui.record.run_catalog import RunCatalog, RunEntry
from grpo_tui.widgets.record_panes import RecordPanes

PROGRESS_SECONDS = 0.25

Shown = tuple[object, ...]


class RecordFollower:
    """What is wanted is set here and by the lists' cursors; `catch_up` reads what differs from it.

    One `catch_up` runs at a time; it may be cancelled at any point and started again.
    """

    def __init__(self, panes: RecordPanes, progress: Callable[[], None]) -> None:
        self.panes = panes
        self.query = GenerationQuery()
        self.whole_run = False
        self.path: Path | None = None
        self._run_folder: Path | None = None
        self._progress = progress
        self._session = RecordSession()
        self._catalog = RunCatalog()
        self._wanted_run: str | None = None
        self._steps_shown: Shown = ()
        self._generations_shown: Shown = ()
        self._begun: Shown = ()

    def open(self, path: Path | None, run_id: str | None, run_folder: Path | None = None) -> None:
        """From now on the runs at or below `path`, with the cursor on `run_id` once it is there."""
        self.path, self._wanted_run, self._run_folder = path, run_id, run_folder
        self.query, self.whole_run = GenerationQuery(), False

    @property
    def has_begun(self) -> bool:
        """What the cursors stand on is shown already, or being read."""
        return self._wanted() == self._begun

    @property
    def milliseconds(self) -> float:
        """How long the last question to the open record took."""
        reader = self._session.reader
        return 0.0 if reader is None else reader.milliseconds

    async def read_runs(self) -> None:
        """Looks for runs; without a path there are none."""
        entries = [] if self.path is None else await self._catalog.read(self.path, self._run_folder)
        self.panes.runs.show(entries)
        wanted = [entry.key for entry in entries if entry.run and entry.run.id == self._wanted_run]
        if wanted and self.panes.runs.select(wanted[0]):
            self._wanted_run = None
        self.panes.runs.set_title(Content(f"runs {integer(len(entries))}"))

    async def catch_up(self) -> None:
        """Shows the steps and completions of what the cursors stand on."""
        self._begun = self._wanted()
        entry = self.panes.runs.current
        if entry is None or entry.run is None:
            await self._session.close()
            self._forget_steps()
            if entry is not None:
                raise RecordError(entry.error or "")
            return
        reader = await self._session.at(entry.database, self._run_folder)
        stamp = await self._session.stamp()
        await self._show_steps(reader, entry, entry.run.id, stamp)
        self._begun = self._wanted()
        await self._show_generations(reader, entry, entry.run.id, stamp)

    async def close(self) -> None:
        """Lets go of the record."""
        await self._session.close()

    async def rows_of_steps(self, ids: Sequence[int]) -> Mapping[int, StepRow]:
        reader = self._session.reader
        return {} if reader is None else await reader.steps(ids)

    async def rows_of_generations(self, ids: Sequence[int]) -> Mapping[int, GenerationRow]:
        reader = self._session.reader
        return {} if reader is None else await reader.generations(ids)

    async def chosen_generation(self) -> GenerationDetail | None:
        """The completion under the cursor, whole."""
        reader, key = self._session.reader, self.panes.generations.current_key
        return None if reader is None or key is None else await reader.generation(key)

    def _wanted(self) -> Shown:
        panes = self.panes
        step = None if self.whole_run else panes.steps.current_key
        return self.path, panes.runs.current_key, step, self.query

    def _forget_steps(self) -> None:
        self.panes.steps.forget()
        self.panes.steps.set_title(Content("steps"))
        self._steps_shown = ()
        self._forget_generations()

    def _forget_generations(self) -> None:
        self.panes.generations.forget()
        self.panes.generations.set_title(Content("completions"))
        self._generations_shown = ()

    async def _show_steps(
        self, reader: DatabaseReader, entry: RunEntry, run_id: str, stamp: Shown
    ) -> None:
        steps = self.panes.steps
        shown = (entry.key, stamp)
        if shown == self._steps_shown:
            return
        if self._steps_shown[:1] != (entry.key,):
            self._forget_steps()
            self._steps_shown = (entry.key,)
        keys = await reader.step_ids(run_id)
        # Who reads completions keeps them; elsewhere a cursor on the newest step follows it.
        steps.set_keys(keys, stay_first=not self.panes.generations.has_focus)
        steps.renew()
        name = safe_line(run_name(entry), 40, self.panes.glyphs)
        steps.set_title(Content(f"{name}: {integer(len(keys))} steps"))
        self._steps_shown = shown

    async def _show_generations(
        self, reader: DatabaseReader, entry: RunEntry, run_id: str, stamp: Shown
    ) -> None:
        query = await self._query_of_cursor(reader)
        if query is None:
            self._forget_generations()
            return
        shown = (entry.key, query, stamp)
        if shown == self._generations_shown:
            return
        generations = self.panes.generations
        is_new = self._generations_shown[:2] != shown[:2]
        self._generations_shown = shown[:2]
        self.panes.with_step = query.step is None
        keys = array("q")
        if is_new:
            generations.set_keys(keys)
        drawn_at = -PROGRESS_SECONDS
        async with aclosing(reader.generation_ids(run_id, query)) as chunks:
            async for chunk in chunks:
                keys.extend(chunk)
                # The first rows are readable while the rest is still being found.
                if is_new and time.monotonic() - drawn_at > PROGRESS_SECONDS:
                    drawn_at = time.monotonic()
                    generations.refresh_rows()
                    self._title_generations(query, len(keys))
                    self._progress()
        generations.set_keys(keys)
        generations.renew()
        self._title_generations(query, len(keys))
        self._generations_shown = shown

    async def _query_of_cursor(self, reader: DatabaseReader) -> GenerationQuery | None:
        """`query` for the whole run or for the step under the cursor; none without a step."""
        if self.whole_run:
            return self.query
        key = self.panes.steps.current_key
        if key is None:
            return None
        row = (await reader.steps([key])).get(key)
        return None if row is None else replace(self.query, step=row.step)

    def _title_generations(self, query: GenerationQuery, count: int) -> None:
        scope = "whole run" if query.step is None else f"step {query.step}"
        order = "" if query.step is not None and not query.is_by_reward else f" {query.order} first"
        filtered = "  filtered" if query.is_filtered else ""
        self.panes.generations.set_title(
            Content(f"{scope}: {integer(count)} completions{order}{filtered}")
        )
