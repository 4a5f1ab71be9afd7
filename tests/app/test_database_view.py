"""The Database tab and the Runs screen as a person uses them."""

import os
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input

from grpo_tui.widgets import database_view
from record_app import RecordApp, RunsApp, Size, panes_of, screen_text, until, until_shown
from sample_database import RecordWriter, Shape, build_run, dead_pid, lock_run


@pytest.fixture(autouse=True)
def quick_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_view, "REFRESH_SECONDS", 0.3)


async def test_three_lists_follow_one_another(tmp_path: Path) -> None:
    build_run(tmp_path / "a", Shape(3, 1, 2), run_id="a", name="alpha")
    build_run(tmp_path / "b", Shape(5, 1, 2), run_id="b", name="beta")
    os.utime(tmp_path / "a" / "outputs.db", (1, 1))
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(tmp_path)
        app.view.focus()
        text = await until_shown(pilot, "completion 5.0.0")
        assert "runs 2" in text
        assert "beta: 5 steps" in text
        assert "step 5: 2 completions" in text
        await pilot.press("j")
        text = await until_shown(pilot, "completion 3.0.1")
        assert "alpha: 3 steps" in text
        assert "completion 5.0.0" not in text
        await pilot.press("enter", "j")
        text = await until_shown(pilot, "completion 2.0.1")
        assert "step 2: 2 completions" in text
        assert "completion 3.0.1" not in text


async def test_enter_on_a_completion_hands_it_over_whole(tmp_path: Path) -> None:
    text = "word " * 1000
    build_run(tmp_path, Shape(2, 1, 3), completion=lambda step, _, member: f"{step}{member} {text}")
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(tmp_path)
        app.view.focus()
        await until_shown(pilot, "A.1")
        await pilot.press("enter", "enter", "j", "enter")
        await until(pilot, lambda: bool(app.opened))
        assert [row.completion_text for row in app.opened] == [f"21 {text}"]
        assert app.opened[0].reward_details == {"accuracy": pytest.approx(1 / 3)}


async def test_a_small_screen_shows_one_list_and_escape_goes_back(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(3, 1, 2), name="alpha")
    app = RunsApp(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        text = await until_shown(pilot, "alpha")
        assert "reward" not in text
        await pilot.press("enter")
        text = await until_shown(pilot, "alpha: 3 steps")
        assert "completion" not in text
        await pilot.press("j", "enter")
        await until_shown(pilot, "completion 2.0.1")
        assert "alpha: 3 steps" not in screen_text(app)
        await pilot.press("escape")
        await until_shown(pilot, "alpha: 3 steps")
        await pilot.press("escape")
        await until_shown(pilot, "runs 1")
        await pilot.press("escape")
        assert "runs 1" in screen_text(app)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=str)
async def test_keys_typed_in_one_breath_are_all_obeyed(size: Size, tmp_path: Path) -> None:
    build_run(tmp_path, Shape(3, 1, 2))
    app = RunsApp(tmp_path)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: panes_of(app).generations.count() == 2)
        for _ in range(2):
            app.post_message(events.Key("enter", "\r"))
        await until(pilot, lambda: panes_of(app).generations.has_focus)
        await pilot.pause()
        assert panes_of(app).generations.has_focus
        await until_shown(pilot, "completion 3.0.1")
        await until_shown(pilot, "row 1 of 2")


async def test_the_wanted_run_is_chosen(tmp_path: Path) -> None:
    path = build_run(tmp_path, Shape(1, 1, 1), run_id="one", name="alpha")
    with RecordWriter(path) as writer:
        writer.add_run("two", name="beta", started_at=1_900_000_000_000)
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(path, "one")
        await until_shown(pilot, "alpha: 1 steps")
        app.view.open(path, "two")
        await until_shown(pilot, "beta: 0 steps")


# --- a living trainer


async def test_what_a_trainer_writes_appears_and_the_cursor_keeps_its_row(tmp_path: Path) -> None:
    path = tmp_path / "outputs.db"
    lock_run(tmp_path, os.getpid())
    app = RecordApp()
    with RecordWriter(path) as writer:
        writer.add_run(status="running", name="alpha")
        for step in range(1, 21):
            writer.add_step("run-1", step, Shape(1, 1, 2))
        async with app.run_test(size=(120, 40)) as pilot:
            app.view.open(path, "run-1")
            app.view.focus()
            await until_shown(pilot, "completion 20.0.0")
            assert "live" in screen_text(app)
            # On the newest step the list follows.
            writer.add_step("run-1", 21, Shape(1, 1, 2))
            await until_shown(pilot, "completion 21.0.0")
            # On any other it stays, in the same row of the screen.
            await pilot.press("enter", *("j" * 15))
            await until_shown(pilot, "completion 6.0.0")
            row = _row_with_cursor(screen_text(app), " 6 reward")
            for step in (22, 23, 24):
                writer.add_step("run-1", step, Shape(1, 1, 2))
            await until_shown(pilot, "alpha: 24 steps")
            await until(pilot, lambda: _row_with_cursor(screen_text(app), " 6 reward") == row)
            assert "completion 6.0.0" in screen_text(app)


async def test_who_reads_completions_keeps_them_while_steps_come(tmp_path: Path) -> None:
    path = tmp_path / "outputs.db"
    lock_run(tmp_path, os.getpid())
    app = RecordApp()
    with RecordWriter(path) as writer:
        writer.add_run(status="running", name="alpha")
        writer.add_step("run-1", 1, Shape(1, 1, 4))
        async with app.run_test(size=(120, 40)) as pilot:
            app.view.open(path)
            app.view.focus()
            await until_shown(pilot, "completion 1.0.0")
            await pilot.press("enter", "enter", "j", "j")
            writer.add_step("run-1", 2, Shape(1, 1, 4))
            await until_shown(pilot, "alpha: 2 steps")
            assert "completion 1.0.2" in screen_text(app)
            assert panes_of(app).generations.cursor == 2


async def test_a_step_that_is_scored_is_shown_done_later(tmp_path: Path) -> None:
    path = tmp_path / "outputs.db"
    lock_run(tmp_path, os.getpid())
    app = RecordApp()
    with RecordWriter(path) as writer:
        writer.add_run(status="running", name="alpha")
        writer.add_step("run-1", 1, Shape(1, 1, 1), state="scored")
        async with app.run_test(size=(120, 40)) as pilot:
            app.view.open(path)
            await until_shown(pilot, "scored")
            writer.db.execute("UPDATE training_steps SET state = 'done', loss = 0.125")
            await until_shown(pilot, "0.125")
            assert "scored" not in screen_text(app)


async def test_steps_taken_back_by_a_resume_leave_the_list(tmp_path: Path) -> None:
    path = tmp_path / "outputs.db"
    lock_run(tmp_path, os.getpid())
    app = RecordApp()
    with RecordWriter(path) as writer:
        writer.add_run(status="running", name="alpha")
        for step in range(1, 6):
            writer.add_step("run-1", step, Shape(1, 1, 2))
        async with app.run_test(size=(120, 40)) as pilot:
            app.view.open(path)
            app.view.focus()
            await until_shown(pilot, "completion 5.0.0")
            writer.delete_steps_after("run-1", 2)
            await until_shown(pilot, "alpha: 2 steps")
            await until_shown(pilot, "completion 2.0.0")


async def test_the_end_of_the_trainer_is_noticed_and_its_side_files_go(tmp_path: Path) -> None:
    path = tmp_path / "outputs.db"
    lock = lock_run(tmp_path, os.getpid())
    writer = RecordWriter(path)
    writer.add_run(status="running", name="alpha")
    writer.add_step("run-1", 1)
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(path)
        await until_shown(pilot, "running")
        writer.db.execute("UPDATE training_runs SET status = 'completed'")
        # Waiting here for a reader would keep that reader from finishing: one thread has both.
        writer.db.execute("PRAGMA busy_timeout = 0")
        await until(pilot, writer.checkpoint)
        writer.close()
        lock.unlink()
        await until_shown(pilot, "complete")
        await until(pilot, lambda: os.listdir(tmp_path) == ["outputs.db"])
    assert os.listdir(tmp_path) == ["outputs.db"]


async def test_a_killed_trainer_is_shown_as_crashed(tmp_path: Path) -> None:
    path = build_run(tmp_path, status="running", name="alpha")
    lock_run(tmp_path, os.getpid())
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(path)
        await until_shown(pilot, "running")
        lock_run(tmp_path, dead_pid())
        await until_shown(pilot, "crashed")


# --- many completions


async def test_a_whole_run_is_reached_from_end_to_end(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(steps=300, prompts=10, group_size=10))
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(tmp_path)
        app.view.focus()
        await until_shown(pilot, "completion 300.0.0")
        await pilot.press("w")
        await until_shown(pilot, "whole run: 30,000 completions newest first")
        await pilot.press("G")
        await until_shown(pilot, "completion 1.9.9")
        assert "row 30,000 of 30,000" in screen_text(app)
        await pilot.press("pageup", "pageup", "enter")
        await until(pilot, lambda: bool(app.opened))
        assert app.opened[0].step == 1
        # Only what was on the screen has been read.
        assert len(panes_of(app).generations._rows) < 1000


async def test_the_order_can_be_changed_and_reversed(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(steps=2, prompts=1, group_size=3))
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(tmp_path)
        app.view.focus()
        await until_shown(pilot, "completion 2.0.0")
        await pilot.press("greater_than_sign", "greater_than_sign")
        text = await until_shown(pilot, "best first")
        assert text.index("completion 2.0.2") < text.index("completion 2.0.0")
        await pilot.press("comma")
        await until_shown(pilot, "worst first")
        await until(
            pilot,
            lambda: (
                screen_text(app).index("completion 2.0.0")
                < screen_text(app).index("completion 2.0.2")
            ),
        )


async def test_a_filter_searches_the_whole_run_and_escape_ends_it(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(steps=30, prompts=1, group_size=4))
    app = RecordApp()
    async with app.run_test(size=(120, 40)) as pilot:
        app.view.open(tmp_path)
        app.view.focus()
        await until_shown(pilot, "step 30: 4 completions")
        await pilot.press("slash", *"7.0. reward>0.4", "enter")
        text = await until_shown(pilot, "whole run: 6 completions newest first  filtered")
        assert text.index("completion 27.0.2") < text.index("completion 7.0.3")
        await pilot.press("escape")
        await until_shown(pilot, "step 30: 4 completions")
        assert app.query_one(Input).value == ""


def _row_with_cursor(text: str, needle: str) -> int:
    rows = [
        number
        for number, line in enumerate(text.split("\n"))
        if needle in line and "▶" in line.split(needle)[0]
    ]
    return rows[0] if rows else -1
