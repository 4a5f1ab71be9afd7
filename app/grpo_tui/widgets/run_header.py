"""The first row of the screen."""

from textual.content import Content
from textual.widget import Widget

from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.drawing.header_line import header_line, status_text
from grpo_tui.state.run_model import RunState


class RunHeader(Widget):
    """What runs and how it stands; readable before the trainer has said a word."""

    DEFAULT_CSS = """
    RunHeader { height: 1; background: $panel; text-wrap: nowrap; }
    """

    def __init__(self, state: RunState, name: str, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self._state, self._stand_in, self._glyphs = state, name, glyphs

    def render(self) -> Content:
        width, height = self.app.size
        if width < 20 or height < 5:
            status = status_text(self._state, self._glyphs)
            return Content.assemble(status, f" {self._state.progress.step}", " q quit")
        return header_line(self._state, self._stand_in, self.size.width, self._glyphs)
