"""The Database tab with nothing to show, with records that are broken, and with hostile text."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from grpo_tui.drawing.glyphs import ASCII
from grpo_tui.widgets import database_view
from grpo_tui.widgets.database_view import NO_RECORD, DatabaseView
from record_app import SIZES, RecordApp, RunsApp, Size, panes_of, screen_text, until, until_shown
from sample_database import RecordWriter, Shape, build_run, lock_run

HOSTILE = (
    (
        "[red]x[/red] [/nothing] [@click=app.quit]q[/] \x1b[2J\x1b]0;title\x07 \x9b31m "
        "\u202egnp.exe \ud83d\udc68\u200d\ud83d\udc69 \u0301\u0301 tab\tend\r\nline \x00 \U000e0041"
    )
    .encode("utf-16", "surrogatepass")
    .decode("utf-16", "replace")
)
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(autouse=True)
def quick_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_view, "REFRESH_SECONDS", 0.3)


async def test_without_a_record_the_reason_is_told() -> None:
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, NO_RECORD[:40])
        assert "output_store.enabled" in screen_text(app)


async def test_a_record_that_appears_later_is_shown(tmp_path: Path) -> None:
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(tmp_path / "outputs.db")
        await until_shown(pilot, "no such file or folder")
        build_run(tmp_path, name="alpha")
        await until_shown(pilot, "alpha")


async def test_an_empty_folder_names_the_ways_to_begin(tmp_path: Path) -> None:
    app = RunsApp(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        text = await until_shown(pilot, "grpo-tui demo")
        assert "grpo-tui train" in text
        build_run(tmp_path / "outputs" / "x", name="alpha")
        await until_shown(pilot, "alpha")


async def test_one_unreadable_record_does_not_hide_the_others(tmp_path: Path) -> None:
    build_run(tmp_path / "good", name="alpha")
    (tmp_path / "bad").mkdir()
    bad = tmp_path / "bad" / "outputs.db"
    bad.write_text("no database" * 1000)
    os.utime(bad, (1, 1))
    app = RunsApp(tmp_path)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "alpha: 3 steps")
        await pilot.press("j")
        text = await until_shown(pilot, "! ")
        assert "is no SQLite database" in await until_shown(pilot, "is no SQLite database")
        assert "alpha: 3 steps" not in screen_text(app), text
        await pilot.press("k")
        await until_shown(pilot, "alpha: 3 steps")


async def test_a_record_damaged_while_it_is_open_is_told_in_the_last_line(tmp_path: Path) -> None:
    path = build_run(tmp_path, Shape(steps=50))
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(path)
        app.view.focus()
        await until_shown(pilot, "completion 50.0.0")
        content = path.read_bytes()
        path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
        await pilot.press("w")
        await until(pilot, lambda: "damaged" in screen_text(app) or "no such" in screen_text(app))


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_hostile_text_stays_text(size: Size, tmp_path: Path) -> None:
    path = build_run(
        tmp_path, Shape(2, 1, 3), name=HOSTILE, completion=lambda *_: HOSTILE, prompt=HOSTILE
    )
    with RecordWriter(path) as writer:
        writer.db.execute("UPDATE generations SET finish_reason = ?", (HOSTILE,))
        writer.add_tool_call(1, 0, HOSTILE)
        writer.add_run("evil", status=HOSTILE, model=HOSTILE, started_at=2**62)
    app = RunsApp(tmp_path)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: panes_of(app).runs.count() == 2)
        await pilot.press("j")
        await until(pilot, lambda: panes_of(app).generations.count() == 3)
        for key in ("enter", "enter", "j", "w", "enter"):
            await pilot.press(key)
            await pilot.pause(0.1)
            assert not FORBIDDEN.search(screen_text(app).replace("\n", ""))
        if size[1] > 1:
            await until_shown(pilot, "[red]")
        await pilot.press("v", "escape", "escape", "escape")


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=str)
async def test_in_ascii_nothing_else_is_drawn(size: Size, tmp_path: Path) -> None:
    build_run(tmp_path, Shape(2, 1, 3), completion=lambda *_: "a\tb\n" * 100, name="x" * 200)
    app = RunsApp(tmp_path, ASCII)
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, ">xxx")
        for key in ("enter", "enter", "w"):
            await pilot.press(key)
            await pilot.pause()
        await until_shown(pilot, "whole run: 6 completions newest first")
        text = screen_text(app)
        assert text.isascii(), set(filter(lambda char: not char.isascii(), text))


async def test_a_completion_of_a_megabyte_opens(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(1, 1, 2), completion=lambda *_: "start " + "x" * 1_000_000)
    app = RunsApp(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: panes_of(app).generations.count() == 2)
        await pilot.press("enter", "enter", "enter")
        await until_shown(pilot, "COMPLETION")
        await pilot.press("G")
        await until_shown(pilot, "(900,006")


async def test_every_key_works_at_every_size(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(30, 2, 4))
    movement = "j k g G pageup pagedown ctrl+u ctrl+d enter j G".split()  # noqa: SIM905
    others = ["w", "less_than_sign", "greater_than_sign", "comma", "slash", "x", "escape", "escape"]
    app = RunsApp(tmp_path)
    async with app.run_test(size=(1, 1)) as pilot:
        await until(pilot, lambda: panes_of(app).steps.count() == 30)
        for size in (*SIZES, (3, 2)):
            await pilot.resize_terminal(*size)
            await pilot.press(*movement, *others)
        await pilot.resize_terminal(120, 40)
        await until_shown(pilot, "row ")


async def test_nothing_is_read_before_the_view_is_shown(tmp_path: Path) -> None:
    path = build_run(tmp_path, name="alpha")
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.display = False
        await pilot.pause()
        app.view.open(path)
        await pilot.pause(0.3)
        assert panes_of(app).runs.count() == 0
        app.view.display = True
        await until_shown(pilot, "alpha: 3 steps")
        app.view.open(None)
        await until_shown(pilot, NO_RECORD[:40])


@pytest.mark.fresh
def test_r08_the_dashboard_ends_with_a_record_open(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from record_app import RunsApp, until_shown

        async def main():
            app = RunsApp(Path(sys.argv[1]))
            async with app.run_test(size=(120, 40)) as pilot:
                await until_shown(pilot, "completion 3.0.0")
                await pilot.press("w")
                app.exit()
            print("left", flush=True)

        asyncio.run(main())
        """
    )
    build_run(tmp_path)
    lock_run(tmp_path, os.getpid())
    support = str(Path(__file__).parent.parent / "support")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": support},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_the_view_is_made_without_arguments() -> None:
    assert DatabaseView(id="database").id == "database"
