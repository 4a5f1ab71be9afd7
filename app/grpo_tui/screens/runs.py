"""The recorded runs of a folder, on the whole screen."""

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static

from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.sanitize import clean_line
from grpo_tui.screens.generation import GenerationScreen
from grpo_tui.widgets.database_view import DatabaseView, GenerationOpened

NO_RUNS = """\
No run is recorded here.

  grpo-tui demo     train the bundled tiny model and watch it learn
  grpo-tui train    train your own: --model FOLDER --data FILE --reward FUNCTION

A run that starts below this folder appears here by itself. q leaves."""


class RunsScreen(Screen[None]):
    """Browses a run folder, a record or a folder of runs; reads only."""

    DEFAULT_CSS = """
    RunsScreen { layout: vertical; }
    RunsScreen > #runs-title { height: 1; background: $panel; padding: 0 1; text-wrap: nowrap; }
    """
    AUTO_FOCUS = None

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.help", "Help", key_display="?", id="runs.help",
                tooltip="All keys"),
        Binding("q", "app.quit", "Quit", id="runs.quit", tooltip="Quit"),
    ]  # fmt: skip

    def __init__(self, path: Path, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self._path, self._glyphs = path, glyphs

    def compose(self) -> ComposeResult:
        yield Static(id="runs-title", markup=False)
        yield DatabaseView(nothing=NO_RUNS, glyphs=self._glyphs, id="runs-view")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        path = clean_line(str(self._path.absolute()), ascii_only=self._glyphs.raster == "ascii")
        self.query_one("#runs-title", Static).update(
            Content.assemble(("grpo-tui", "bold"), f"  runs in {path}")
        )
        view = self.query_one(DatabaseView)
        view.open(self._path)
        view.focus()

    @on(GenerationOpened)
    def _open_generation(self, event: GenerationOpened) -> None:
        event.stop()
        self.app.push_screen(GenerationScreen(event.row, self._glyphs))
