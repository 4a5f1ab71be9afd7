"""Three linked lists: runs, the steps of one, and completions; side by side or one at a time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.content import Content

from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.record.database_lines import generation_line, run_line, step_line
from grpo_tui.record.database_rows import GenerationRow, StepRow
from grpo_tui.record.run_catalog import RunEntry
from grpo_tui.widgets.record_list import KeyedList, RecordList
from grpo_tui.widgets.row_list import RowList

RUNS, STEPS, GENERATIONS = range(3)
_ROOMY_WIDTH: Final = 70
_ROOMY_HEIGHT: Final = 24

RunKey = tuple[Path, str]
ReadSteps = Callable[[Sequence[int]], Awaitable[Mapping[int, StepRow]]]
ReadGenerations = Callable[[Sequence[int]], Awaitable[Mapping[int, GenerationRow]]]


class RunList(KeyedList[RunKey]):
    """The runs of one or many records."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._entries: dict[RunKey, RunEntry] = {}

    def show(self, entries: Sequence[RunEntry]) -> None:
        """Takes what there is now."""
        self._entries = {entry.key: entry for entry in entries}
        self.set_keys(list(self._entries))

    @property
    def current(self) -> RunEntry | None:
        """The run under the cursor."""
        key = self.current_key
        return None if key is None else self._entries[key]

    def draw_row(self, index: int, width: int, selected: bool) -> Content:
        cursor = self.glyphs.row_cursor if selected else " "
        entry = self._entries[self._keys[index]]
        return Content.assemble(
            (cursor, "$text-accent"), run_line(entry, max(1, width - 1), self.glyphs)
        )


class RecordPanes(Container):
    """Where there is no room for three lists, Enter goes down to the next and Esc up again."""

    DEFAULT_CSS = """
    RecordPanes { height: 1fr; layout: vertical; }
    RecordPanes > #record-upper { height: 2fr; }
    RecordPanes #record-runs { width: 1fr; margin-right: 1; }
    RecordPanes #record-steps { width: 1fr; }
    RecordPanes > #record-generations { height: 3fr; }
    RecordPanes.-drill RowList { display: none; width: 1fr; height: 1fr; margin: 0; }
    RecordPanes.-drill > #record-upper { display: none; height: 1fr; }
    RecordPanes.-drill.-runs > #record-upper, RecordPanes.-drill.-steps > #record-upper,
    RecordPanes.-drill.-runs #record-runs, RecordPanes.-drill.-steps #record-steps,
    RecordPanes.-drill.-generations > #record-generations { display: block; }
    """

    def __init__(
        self,
        read_steps: ReadSteps,
        read_generations: ReadGenerations,
        glyphs: Glyphs = UNICODE,
        *,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self.with_step = False
        """Completions of several steps are shown, so each line names its own."""
        self.glyphs = glyphs
        self.runs = RunList(glyphs, id="record-runs")
        self.steps: RecordList[StepRow] = RecordList(
            read_steps, self._draw_step, glyphs, id="record-steps"
        )
        self.generations: RecordList[GenerationRow] = RecordList(
            read_generations, self._draw_generation, glyphs, id="record-generations"
        )
        self._set_level(RUNS)

    def compose(self) -> ComposeResult:
        with Horizontal(id="record-upper"):
            yield self.runs
            yield self.steps
        yield self.generations

    @property
    def lists(self) -> tuple[KeyedList[RunKey], KeyedList[int], KeyedList[int]]:
        return self.runs, self.steps, self.generations

    def focus(self, scroll_visible: bool = True) -> Self:
        """Gives the keys to the list that is in use."""
        self.lists[self.level].focus(scroll_visible)
        return self

    def go_to(self, level: int) -> None:
        """Puts `level` in use, with the keys if they are in here."""
        had_focus = self.has_focus_within
        self._set_level(max(RUNS, min(GENERATIONS, level)))
        if had_focus:
            self.focus()

    def _set_level(self, level: int) -> None:
        self.level = level
        for number, name in enumerate(("-runs", "-steps", "-generations")):
            self.set_class(number == level, name)

    def on_resize(self, event: events.Resize) -> None:
        roomy = event.size.width >= _ROOMY_WIDTH and event.size.height >= _ROOMY_HEIGHT
        self.set_class(not roomy, "-drill")

    def on_descendant_focus(self) -> None:
        # Of two quick changes of focus the news may come in the wrong order: ask the screen.
        focused = [level for level, rows in enumerate(self.lists) if rows is self.screen.focused]
        if not focused or focused[0] == self.level:
            return
        if self.has_class("-drill"):
            # That list is out of sight, as after two quick keys; the one in sight has the keys.
            self.focus()
        else:
            self._set_level(focused[0])

    @on(RowList.Chosen, "#record-runs")
    @on(RowList.Chosen, "#record-steps")
    def _go_deeper(self, event: RowList.Chosen) -> None:
        event.stop()
        self.go_to(self.level + 1)

    def _draw_step(self, row: StepRow, width: int) -> Content:
        return step_line(row, width, self.glyphs)

    def _draw_generation(self, row: GenerationRow, width: int) -> Content:
        return generation_line(row, width, self.glyphs, with_step=self.with_step)
