"""States, commands and modes of the dashboard, as a person at the keyboard sees them."""

import pytest

from dashboard import dashboard
from grpo_protocol.commands import Pause, Resume, SaveCheckpoint
from grpo_protocol.messages import (
    Applied,
    Checkpoint,
    Complete,
    Failed,
    Log,
    Paused,
    PhaseChange,
    Resumed,
    Status,
)
from grpo_tui.notices import ChildExited, ChildStarted
from grpo_tui.screens.sample_detail import SampleDetail
from grpo_tui.widgets.sample_table import SampleTable


async def test_header_is_readable_before_the_trainer_has_said_a_word() -> None:
    async with dashboard((80, 24)) as board:
        header = board.lines[0]
        assert "demo" in header
        assert "starting trainer" in header
        assert "q Quit" in board.lines[-1]


async def test_loading_message_and_phase_of_the_running_step_are_in_the_header() -> None:
    async with dashboard() as board:
        await board.feed(ChildStarted(1), Status("loading", "Loading 0.8 M parameters"))
        assert "Loading 0.8 M parameters" in board.lines[0]
        await board.begin(steps=50)
        await board.feed(PhaseChange(1, "generating", 34, 64))
        assert "generating 34/64" in board.lines[0]
        assert "▶ running" in board.lines[0]
        assert "batch 0/50" in board.lines[0]


async def test_pause_and_resume_show_asked_and_done_apart() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.press("p")
        assert board.sent == [Pause()]
        assert "pausing" in board.lines[0]
        await board.feed(Paused(0))
        assert "‖ paused" in board.lines[0]
        assert "r Resume" in board.lines[-1]
        await board.press("r")
        assert board.sent[-1] == Resume()
        await board.feed(Resumed(0))
        assert "▶ running" in board.lines[0]


async def test_pause_cannot_be_asked_where_nothing_runs() -> None:
    async with dashboard() as board:
        await board.press("p", "s")
        assert board.sent == []


async def test_footer_offers_no_command_when_no_trainer_lives() -> None:
    async with dashboard() as board:
        await board.begin()
        assert "p Pause" in board.lines[-1]
        assert "s Save" in board.lines[-1]
        for end in (Failed("no memory", 1), Complete(5, 9.0, "completed")):
            await board.begin()
            await board.feed(end)
            await board.until(lambda: "q Quit" in board.lines[-1])
            await board.until(lambda: "Pause" not in board.lines[-1])
            assert "Save" not in board.lines[-1]


async def test_tick_between_opening_a_screen_and_its_first_drawing_is_harmless() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 1)
        sample = board.app.state.samples.get(0)
        assert sample is not None
        board.app.push_screen(SampleDetail(board.app.state, sample, board.app.glyphs))
        board.app.receive(Log("info", "news"))
        board.app.tick()
        await board.settle()
        assert isinstance(board.app.screen, SampleDetail)


async def test_save_tells_where_the_checkpoint_is() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.press("s")
        assert board.sent == [SaveCheckpoint()]
        await board.feed(
            Checkpoint("out/checkpoint-3", 3, "manual"),
            Applied(1, "SAVE_CHECKPOINT", True, path="out/checkpoint-3"),
        )
        await board.until(lambda: "out/checkpoint-3" in board.text)


async def test_w30_everything_can_be_read_after_the_end() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 5)
        await board.feed(Complete(5, 9.0, "completed"), ChildExited(0, asked=False))
        board.supervisor.alive = False
        assert "✓ complete" in board.lines[0]
        await board.press("j", "j", "enter")
        assert isinstance(board.app.screen, SampleDetail)
        await board.press("escape", "1", "3", "2", "pagedown")
        assert board.live.query_one(SampleTable).cursor > 2
        await board.press("q")
        await board.until(lambda: not board.app.is_running)
        assert board.app.return_code == 0


async def test_no_color_leaves_the_colours_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 5)
        for keys in (["1"], ["3"], ["2"], ["q"]):
            await board.press(*keys)
            for strip in board.app.screen._compositor.render_strips():
                for segment in strip:
                    colors = (segment.style.color, segment.style.bgcolor) if segment.style else ()
                    assert all(color is None or color.is_default for color in colors), segment


async def test_ascii_screens_hold_no_other_characters() -> None:
    async with dashboard((100, 30), ascii_only=True) as board:
        await board.begin()
        await board.steps(1, 10)
        await board.press("s")
        await board.feed(Applied(1, "SAVE_CHECKPOINT", True, path="checkpoint-10"))
        await board.until(lambda: "saved checkpoint-10" in board.text)
        for keys in (["1"], ["2"], ["3"], ["5"], ["question_mark"], ["escape", "q"]):
            await board.press(*keys)
            shown = board.text.replace("…", "")
            assert shown.isascii(), sorted({c for c in shown if not c.isascii()})
