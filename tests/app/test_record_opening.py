"""What the recorded runs show before they are read, and before their width is known."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_tui.drawing.wrapping import wrap
from grpo_tui.screens.generation import GenerationScreen
from grpo_tui.widgets import text_view
from grpo_tui.widgets.record_follower import RecordFollower
from record_app import RecordApp, RunsApp, until, until_shown
from sample_database import Shape, build_run


async def test_before_its_first_answer_a_record_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_run(tmp_path, Shape(2, 1, 2), name="alpha")
    gate, read = asyncio.Event(), RecordFollower.read_runs

    async def read_late(self: RecordFollower) -> None:
        if self.path is not None:
            await gate.wait()
        await read(self)

    monkeypatch.setattr(RecordFollower, "read_runs", read_late)
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "No record.")
        app.view.open(tmp_path)
        text = await until_shown(pilot, "opening the record…")
        assert "No record." not in text
        gate.set()
        text = await until_shown(pilot, "alpha")
        assert "opening" not in text


async def test_a_completion_is_not_laid_out_before_its_width_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []

    def watched(text: str, width: int) -> Iterator[str]:
        widths.append(width)
        return wrap(text, width)

    monkeypatch.setattr(text_view, "wrap", watched)
    build_run(tmp_path, Shape(1, 1, 1))
    app = RunsApp(tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "A.0")
        await pilot.press("enter", "enter", "enter")
        await until(pilot, lambda: isinstance(app.screen, GenerationScreen) and bool(widths))
        await until_shown(pilot, "completion 1.0.0")
    assert min(widths) > 80
