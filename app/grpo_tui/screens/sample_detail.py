"""One completion on the whole screen, with the other answers of its group one key away."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static

from grpo_tui.clipboard import copy_text
from grpo_tui.drawing.glyphs import Glyphs
from grpo_tui.drawing.sample_text import body_blocks, group_line, title_line
from grpo_tui.state.run_model import RunState
from grpo_tui.state.samples import Sample
from grpo_tui.widgets.run_header import RunHeader
from grpo_tui.widgets.text_view import TextView


class SampleDetail(Screen[None]):
    """Holds its completion even after the list has dropped it."""

    CSS_PATH = "sample_detail.tcss"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,q",
            "dismiss",
            "Back",
            key_display="Esc",
            id="detail.back",
            tooltip="Back to the list",
        ),
        Binding(
            "left_square_bracket",
            "answer(-1)",
            "Previous answer",
            key_display="[",
            id="detail.previous",
            tooltip="Previous answer of the group",
        ),
        Binding(
            "right_square_bracket",
            "answer(1)",
            "Next answer",
            key_display="]",
            id="detail.next",
            tooltip="Next answer of the group",
        ),
        Binding(
            "left_curly_bracket",
            "step(-1)",
            "Earlier step",
            show=False,
            key_display="{",
            id="detail.step_back",
            tooltip="Same place in an earlier step",
        ),
        Binding(
            "right_curly_bracket",
            "step(1)",
            "Later step",
            show=False,
            key_display="}",
            id="detail.step_on",
            tooltip="Same place in a later step",
        ),
        Binding(
            "v",
            "view",
            "Raw",
            id="detail.view",
            tooltip="Wrapped, or raw with blanks and line ends visible",
        ),
        Binding("y", "copy", "Copy", id="detail.copy", tooltip="Copy the completion"),
        Binding("p", "app.pause", "Pause", id="detail.pause", tooltip="Pause training"),
        Binding("r", "app.resume", "Resume", id="detail.resume", tooltip="Go on training"),
        Binding(
            "question_mark",
            "app.help",
            "Help",
            key_display="?",
            id="detail.help",
            tooltip="All keys",
        ),
    ]

    def __init__(self, state: RunState, sample: Sample, glyphs: Glyphs) -> None:
        super().__init__()
        self._state, self._sample, self._glyphs = state, sample, glyphs

    @property
    def sample(self) -> Sample:
        """What is shown."""
        return self._sample

    def compose(self) -> ComposeResult:
        yield RunHeader(self._state, "", self._glyphs)
        yield Static(id="title", markup=False)
        yield Static(id="group", markup=False)
        yield TextView(self._glyphs, id="text")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(TextView).focus()
        self._show()

    def show_state(self, *, changed: bool) -> None:
        """Only the header moves; the text under the reader's eyes stays."""
        self.query_one(RunHeader).refresh()
        if changed:
            self.refresh_bindings()

    def _group(self) -> list[Sample]:
        return self._state.samples.group(self._sample.group) or [self._sample]

    def _show(self) -> None:
        sample = self._sample
        self.query_one("#title", Static).update(title_line(sample))
        self.query_one("#group", Static).update(
            Content(group_line(sample, self._group(), self._state.group_size))
        )
        self.query_one(TextView).show(body_blocks(sample))

    def action_answer(self, direction: int) -> None:
        group = self._group()
        here = next((i for i, s in enumerate(group) if s.number == self._sample.number), 0)
        self._sample = group[(here + direction) % len(group)]
        self._show()

    def action_step(self, direction: int) -> None:
        steps = self._state.samples.steps()
        here = next((i for i, step in enumerate(steps) if step >= self._sample.step), 0)
        index = here + direction
        if not 0 <= index < len(steps):
            self.notify("no further step is held", timeout=2, markup=False)
            return
        batch = self._state.samples.of_step(steps[index])
        same = [sample for sample in batch if sample.index == self._sample.index]
        self._sample = same[0] if same else batch[0]
        self._show()

    def action_view(self) -> None:
        view = self.query_one(TextView)
        view.set_raw(not view.raw)

    def action_copy(self) -> None:
        self.notify(copy_text(self.app, self._sample.completion), timeout=4, markup=False)
