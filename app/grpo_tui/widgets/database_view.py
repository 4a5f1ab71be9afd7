"""The recorded runs below a path: runs, their steps, and the completions of a step or a run.

The lists follow one another: what the cursor of one stands on is what the next one shows. While the
view is on the screen it looks every two seconds for what a trainer has written.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Self

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static
from textual.worker import Worker

from grpo_tui.drawing.formatting import integer
from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.record.database import RecordError
from grpo_tui.record.database_filter import REVERSED, narrowed, neighbour
from grpo_tui.record.database_lines import DIM, safe_line
from grpo_tui.record.database_rows import GenerationDetail, GenerationOrder
from grpo_tui.record.run_discovery import NoSuchPathError
from grpo_tui.widgets.record_follower import RecordFollower
from grpo_tui.widgets.record_list import RecordList
from grpo_tui.widgets.record_panes import GENERATIONS, RUNS, RecordPanes
from grpo_tui.widgets.row_list import RowList

REFRESH_SECONDS: Final = 2.0
NO_RECORD: Final = (
    "No record. The trainer names its record before the first step; "
    "with output_store.enabled = false it keeps none."
)


@dataclass
class GenerationOpened(Message):
    """Enter was pressed on a completion: here it is whole."""

    row: GenerationDetail


class DatabaseView(Container):
    """Does nothing until it is on the screen; then shows what `open` has named."""

    DEFAULT_CSS = """
    DatabaseView { height: 1fr; layout: vertical; }
    DatabaseView > #record-nothing { display: none; height: 1fr; padding: 1 2; }
    DatabaseView.-nothing > #record-nothing { display: block; }
    DatabaseView.-nothing > RecordPanes { display: none; }
    DatabaseView > #record-filter { display: none; height: 1; border: none; padding: 0 1; }
    DatabaseView.-filtering > #record-filter { display: block; }
    DatabaseView > #record-status { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", key_display="Esc", id="record.back",
                tooltip="End the filter; one list up"),
        Binding("w", "whole_run", "Whole run", id="record.whole_run",
                tooltip="Completions of the whole run, or of one step"),
        Binding("slash", "filter", "Filter", key_display="/", id="record.filter",
                tooltip="Filter completions: words, reward<0.3 fin:length step:4..9 tok>100"),
        Binding("less_than_sign", "sort(-1)", "Sort", show=False, key_display="<",
                id="record.sort_back", tooltip="Order before: newest, oldest, best, worst"),
        Binding("greater_than_sign", "sort(1)", "Sort", show=False, key_display=">",
                id="record.sort", tooltip="Next order: newest, oldest, best, worst"),
        Binding("comma", "reverse", "Reverse", show=False, key_display=",",
                id="record.reverse", tooltip="Reverse the order"),
    ]  # fmt: skip

    def __init__(
        self, *, nothing: str = NO_RECORD, glyphs: Glyphs = UNICODE, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._panes = RecordPanes(
            lambda ids: self._follower.rows_of_steps(ids),
            lambda ids: self._follower.rows_of_generations(ids),
            glyphs,
        )
        self._follower = RecordFollower(self._panes, self._show_status)
        self._glyphs = glyphs
        self._nothing = nothing
        self._turn = asyncio.Lock()
        self._worker: Worker[None] | None = None
        self._runs_due = True
        self._is_opening = self._was_whole_run = False
        self._busy = self._wants_focus = self._could_go_back = False
        self._error = ""

    def compose(self) -> ComposeResult:
        yield Static(id="record-nothing", markup=False)
        yield self._panes
        yield Input(id="record-filter", placeholder="words  reward<0.3  fin:length  step:4..9")
        yield Static(id="record-status", markup=False)

    def on_mount(self) -> None:
        self.set_interval(REFRESH_SECONDS, self._tick)

    def on_show(self) -> None:
        self._start(runs_due=True)

    async def on_unmount(self) -> None:
        try:
            if self._worker is not None:
                self._worker.cancel()
        finally:
            # The worker gives up its turn as soon as its question has been interrupted.
            async with self._turn:
                await self._follower.close()

    def open(
        self, path: Path | None, run_id: str | None = None, run_folder: Path | None = None
    ) -> None:
        """Shows the runs at or below `path` (record, run folder or parent; None: nothing is there).

        The cursor goes to `run_id`; `run_folder` is that of the run in hand.
        """
        self._follower.open(path, run_id, run_folder)
        self._is_opening, self._error = path is not None, ""
        for field in self.query(Input):
            field.value = ""
        self._start(runs_due=True)
        self._show_status()

    def focus(self, scroll_visible: bool = True) -> Self:
        """Gives the keys to the list that is in use, once there is something in it."""
        self._wants_focus = True
        self._panes.focus(scroll_visible)
        return self

    def _take_focus(self) -> None:
        if self.is_on_screen and self.screen.focused is None:
            self._panes.focus()

    # --- following the record

    def _start(self, *, runs_due: bool = False) -> None:
        self._runs_due = self._runs_due or runs_due
        if self.is_mounted and (self.is_on_screen or self._follower.path is None):
            self._worker = self._follow()

    def _tick(self) -> None:
        busy = self._worker is not None and not self._worker.is_finished
        if self.is_on_screen and self.screen.is_current and not busy:
            self._start(runs_due=True)

    @work(exclusive=True, group="record")
    async def _follow(self) -> None:
        async with self._turn:
            self._busy = True
            try:
                if self._runs_due:
                    await self._follower.read_runs()
                    self._runs_due = False
                await self._follower.catch_up()
                self._error = ""
            except (RecordError, NoSuchPathError) as error:
                self._error = str(error)
            finally:
                self._busy = False
            self._is_opening = False
        self._show_status()

    @on(RowList.Moved)
    def _cursor_moved(self, event: RowList.Moved) -> None:
        event.stop()
        if not self._follower.has_begun:
            self._start()
        self._show_status()

    def on_descendant_focus(self) -> None:
        self._show_status()

    @on(RecordList.Unreadable)
    def _rows_unreadable(self, event: RecordList.Unreadable) -> None:
        event.stop()
        self._error = event.error
        self._show_status()

    # --- a completion

    @on(RowList.Chosen, "#record-generations")
    def _chosen(self, event: RowList.Chosen) -> None:
        event.stop()
        self._open_chosen()

    @work(exclusive=True, group="detail")
    async def _open_chosen(self) -> None:
        try:
            detail = await self._follower.chosen_generation()
        except RecordError as error:
            self._error = str(error)
            self._show_status()
            return
        if detail is not None:
            self.post_message(GenerationOpened(detail))

    # --- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # At the top Esc belongs to the screen.
        return action != "back" or self._can_go_back()

    def _can_go_back(self) -> bool:
        is_filtering = self.has_class("-filtering") or self._follower.query.is_filtered
        return is_filtering or self._panes.level > RUNS

    def action_back(self) -> None:
        if self.has_class("-filtering"):
            self._end_input()
        elif self._follower.query.is_filtered:
            self.query_one(Input).value = ""
        else:
            self._panes.go_to(self._panes.level - 1)

    def action_whole_run(self) -> None:
        self._follower.whole_run = not self._follower.whole_run
        self._panes.go_to(GENERATIONS)
        self._start()

    def action_sort(self, direction: int) -> None:
        self._order(neighbour(self._follower.query.order, direction))

    def action_reverse(self) -> None:
        self._order(REVERSED[self._follower.query.order])

    def _order(self, order: GenerationOrder) -> None:
        self._follower.query = replace(self._follower.query, order=order)
        self._start()

    def action_filter(self) -> None:
        self.add_class("-filtering")
        self._panes.go_to(GENERATIONS)
        self.query_one(Input).focus()

    @on(Input.Changed, "#record-filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        event.stop()
        follower = self._follower
        query = narrowed(follower.query, event.value)
        if query.is_filtered and not follower.query.is_filtered:
            # Who searches rarely means one step; the step comes back with the end of the filter.
            self._was_whole_run, follower.whole_run = follower.whole_run, True
        elif follower.query.is_filtered and not query.is_filtered:
            follower.whole_run = self._was_whole_run
        if query != follower.query:
            follower.query = query
            self._start()

    @on(Input.Submitted, "#record-filter")
    def _filter_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._end_input()

    def _end_input(self) -> None:
        self.remove_class("-filtering")
        self._panes.go_to(GENERATIONS)
        self._panes.focus()

    # --- the last line

    def _show_status(self) -> None:
        # An answer may come while the view is being taken down.
        if not self.is_mounted or not self.query("#record-status"):
            return
        has_runs = self._panes.runs.count() > 0
        if has_runs and self.has_class("-nothing") and self._wants_focus:
            # Hidden lists could not take the keys; nor must they be taken from another pane.
            self.call_after_refresh(self._take_focus)
        self.set_class(not has_runs, "-nothing")
        if not has_runs:
            text = safe_line(self._error, 500, self._glyphs) if self._error else self._nothing
            if self._is_opening:
                text = f"opening the record{self._glyphs.ellipsis}"
            self.query_one("#record-nothing", Static).update(Content(text))
        self.query_one("#record-status", Static).update(self._status(), layout=False)
        if self._can_go_back() != self._could_go_back:
            # The footer builds all its keys anew, which is too much for every row the cursor moves.
            self._could_go_back = self._can_go_back()
            self.refresh_bindings()

    def _status(self) -> Content:
        if self._error and self._panes.runs.count():
            return Content.styled(f"! {safe_line(self._error, 500, self._glyphs)}", "$text-error")
        if self._panes.runs.current is None:
            return Content("")
        rows = self._panes.lists[self._panes.level]
        run = self._panes.runs.current.run
        parts = [
            f"row {integer(rows.cursor + bool(rows.count()))} of {integer(rows.count())}",
            "reading" if self._busy else f"{self._follower.milliseconds:.0f} ms",
            "live" if run is not None and run.is_live else "",
        ]
        text = f" {self._glyphs.separator} ".join(part for part in parts if part)
        return Content.styled(f" {text}", DIM)
