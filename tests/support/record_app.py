"""A dashboard of one view: the recorded runs, driven by a pilot."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.drawing.themes import DARK
from grpo_tui.record.database_rows import GenerationDetail
from grpo_tui.screens.runs import RunsScreen
from grpo_tui.widgets.database_view import DatabaseView, GenerationOpened
from grpo_tui.widgets.record_panes import RecordPanes

Size = tuple[int, int]
SIZES: Sequence[Size] = ((120, 40), (80, 24), (40, 12), (1, 1))


class RecordApp(App[None]):
    """Holds nothing but the view, and keeps what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.register_theme(DARK)
        self.theme = DARK.name
        self.opened: list[GenerationDetail] = []

    def compose(self) -> ComposeResult:
        yield DatabaseView(id="view")

    @property
    def view(self) -> DatabaseView:
        return self.query_one(DatabaseView)

    def on_generation_opened(self, event: GenerationOpened) -> None:
        self.opened.append(event.row)


class RunsApp(App[None]):
    """Opens the Runs screen of a path."""

    def __init__(self, path: Path, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self.register_theme(DARK)
        self.theme = DARK.name
        self.path, self.glyphs = path, glyphs

    def on_mount(self) -> None:
        self.push_screen(RunsScreen(self.path, self.glyphs))


def panes_of(app: App[None]) -> RecordPanes:
    return app.screen.query_one(RecordPanes)


def screen_text(app: App[None]) -> str:
    """What stands on the screen, one line a row."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[None], condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits until `condition` holds; fails with the screen's text when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, screen_text(pilot.app)
        await pilot.pause(0.02)


async def until_shown(pilot: Pilot[None], text: str) -> str:
    """Waits until `text` stands on the screen."""
    await until(pilot, lambda: text in screen_text(pilot.app))
    return screen_text(pilot.app)
