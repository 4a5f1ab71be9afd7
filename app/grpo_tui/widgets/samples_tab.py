"""The Samples tab: the table, and under it the chosen completion with its group."""

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from grpo_tui.drawing.formatting import integer
from grpo_tui.drawing.glyphs import Glyphs
from grpo_tui.drawing.sample_text import body_blocks, group_line, title_line
from grpo_tui.sanitize import clean_line
from grpo_tui.state.run_model import RunState
from grpo_tui.state.samples import Sample
from grpo_tui.widgets.row_list import RowList
from grpo_tui.widgets.sample_table import SampleTable
from grpo_tui.widgets.text_view import TextView

MODE_WORDS = {"all": "all", "best_worst": "best/worst", "random": "random"}


class SamplesTab(Vertical):
    """Table above, preview below."""

    DEFAULT_CSS = """
    SamplesTab > #sample-heading { height: 1; text-wrap: nowrap; }
    SamplesTab > SampleTable { height: 1fr; min-height: 3; }
    SamplesTab > #sample-title { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; }
    SamplesTab > #sample-group { height: 1; padding: 0 1; text-wrap: nowrap; }
    SamplesTab > TextView { height: 1fr; padding: 0 1; }
    """

    def __init__(self, state: RunState, glyphs: Glyphs, *, id: str) -> None:
        super().__init__(id=id)
        self._state, self._glyphs = state, glyphs
        self._previewed: Sample | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="sample-heading", markup=False)
        yield SampleTable(self._glyphs, id="sample-table")
        yield Static(id="sample-title", markup=False)
        yield Static(id="sample-group", markup=False)
        preview = TextView(self._glyphs, id="sample-preview")
        preview.can_focus = False
        yield preview

    @property
    def table(self) -> SampleTable:
        return self.query_one(SampleTable)

    def show(self) -> None:
        """Takes the state of now."""
        table = self.table
        table.show(self._state)
        self._set("#sample-heading", table.heading(table.size.width))
        self._preview(table.current)

    def _preview(self, sample: Sample | None) -> None:
        preview = self.query_one(TextView)
        if sample is None:
            self._set("#sample-title", Content.styled(self._empty(), "$foreground 60%"))
            self._set("#sample-group", Content())
            preview.show([])
        else:
            group = self._state.samples.group(sample.group)
            self._set("#sample-title", title_line(sample))
            line = group_line(sample, group, self._state.group_size, self.size.width - 2)
            self._set("#sample-group", Content.styled(line, "$foreground 60%"))
            if sample is not self._previewed:
                preview.show(body_blocks(sample, compact=True))
        self._previewed = sample

    def _set(self, selector: str, text: Content) -> None:
        # The line keeps its one row, so the screen need not be laid out again.
        self.query_one(selector, Static).update(text, layout=False)

    def _empty(self) -> str:
        if len(self._state.samples):
            return f"none of {len(self._state.samples)} completions passes the filter"
        if self._state.failure:
            return f"no completions: {clean_line(self._state.failure)}"
        return "no completions yet"

    @on(RowList.Moved, "#sample-table")
    def _moved(self) -> None:
        self._preview(self.table.current)

    def note(self) -> Content:
        """Mode, filter and follow for the tab bar."""
        table = self.table
        parts = [f"{MODE_WORDS[self._state.sample_mode]} [m]"]
        if table.query_text:
            parts.append(f"{integer(table.hits)} hits [/]")
        if table.unseen:
            parts.append(f"{table.unseen} new")
        parts.append(f"follow {'on' if table.follow else 'off'} [f]")
        return Content.styled("  ".join(parts) + " ", "$foreground 60%")
