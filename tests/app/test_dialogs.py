"""Help, the ways out, the restart countdown and the trainer's questions."""

import pytest

from dashboard import dashboard
from grpo_protocol.commands import Answer
from grpo_protocol.messages import (
    Choice,
    Failed,
    Prompt,
)
from grpo_tui.notices import ChildExited, QuitStage, RestartScheduled
from grpo_tui.screens.help import HelpScreen
from grpo_tui.screens.live import LiveScreen
from grpo_tui.screens.live_keys import LIVE_KEYS
from grpo_tui.screens.quit_dialog import QuitDialog
from grpo_tui.screens.stop_dialog import StopDialog
from grpo_tui.screens.trainer_prompt import TrainerPrompt


async def test_help_lists_every_key_of_the_live_screen() -> None:
    async with dashboard((80, 24)) as board:
        await board.press("question_mark")
        assert isinstance(board.app.screen, HelpScreen)
        shown = str(board.app.screen.query_one("Static").render())
        for binding in LIVE_KEYS:
            assert binding.tooltip in shown  # type: ignore[union-attr]
        await board.press("escape")
        assert isinstance(board.app.screen, LiveScreen)


def test_every_binding_has_an_id_of_its_own_and_a_tooltip() -> None:
    from grpo_tui.screens.help_sections import HELP_SECTIONS

    seen: dict[str, object] = {}
    for _, node in HELP_SECTIONS:
        for binding in node.BINDINGS:
            assert binding.id, binding  # type: ignore[union-attr]
            assert binding.tooltip, binding  # type: ignore[union-attr]
            assert seen.setdefault(binding.id, node) is node  # type: ignore[union-attr]


@pytest.mark.parametrize("door", ["q", "ctrl+c", "ctrl+q", "palette"])
async def test_every_door_out_leads_through_the_dialog(door: str) -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        if door == "palette":
            await board.app.run_action("quit")
        else:
            await board.pilot.press(door)
        await board.settle()
        assert isinstance(board.app.screen, QuitDialog)
        assert board.app.focused is not None
        assert board.app.focused.id == "stay"
        await board.press("enter")
        assert isinstance(board.app.screen, LiveScreen)
        assert board.supervisor.calls == []


async def test_stop_shows_a_countdown_and_can_be_hurried() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.press("q", "y")
        assert board.supervisor.calls == ["quit 60"]
        await board.feed(QuitStage("stop", board.clock.now + 60))
        assert isinstance(board.app.screen, StopDialog)
        assert "60 s until SIGTERM" in board.text
        board.clock.move(20)
        await board.settle()
        assert "40 s until SIGTERM" in board.text
        await board.press("K")
        assert board.supervisor.calls[-1] == "hurry"
        board.app.receive(ChildExited(0, asked=True))
        board.app._trainer_ended(0)
        await board.until(lambda: not board.app.is_running)
        assert board.app.return_code == 0


async def test_second_ctrl_c_while_stopping_hurries() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.press("ctrl+c", "y")
        await board.feed(QuitStage("stop", board.clock.now + 60))
        await board.press("ctrl+c")
        assert board.supervisor.calls[-1] == "hurry"


@pytest.mark.parametrize(("key", "call"), [("d", "detach"), ("K", "kill")])
async def test_detach_and_kill_are_one_key_in_the_dialog(key: str, call: str) -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.press("q", key)
        assert board.supervisor.calls == [call]


async def test_q_leaves_at_once_without_a_living_trainer() -> None:
    async with dashboard((80, 24)) as board:
        board.supervisor.alive = False
        await board.feed(Failed("no such model folder", 2), ChildExited(2, asked=False))
        assert "no such model folder" in board.text
        await board.press("q")
        await board.until(lambda: not board.app.is_running)
        assert board.app.return_code == 2


async def test_restart_countdown_can_be_cancelled_or_shortened() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.feed(ChildExited(-9, asked=False))
        await board.feed(RestartScheduled(1, board.clock.now + 5))
        assert "again in 5 s" in board.lines[0]
        assert "c Cancel" in board.lines[-1]
        await board.press("enter")
        assert board.supervisor.calls == ["restart now"]
        await board.press("c")
        assert board.supervisor.calls[-1] == "cancel restart"


def question(count: int = 3, *, several: bool = False) -> Prompt:
    choices = [Choice(f"v{n}", f"choice {n}") for n in range(count)]
    return Prompt("q1", "Which one?", choices, several, [1])


async def test_single_question_sends_the_chosen_value() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.feed(question())
        assert isinstance(board.app.screen, TrainerPrompt)
        await board.press("j", "enter")
        assert board.sent == [Answer("q1", ("v2",))]
        assert isinstance(board.app.screen, LiveScreen)


async def test_question_with_several_answers_starts_from_its_defaults() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.feed(question(several=True))
        assert "[x] choice 1" in board.text
        await board.press("g", "space", "enter")
        assert board.sent == [Answer("q1", ("v0", "v1"))]


async def test_question_can_be_put_off_and_taken_up_again() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.feed(question())
        await board.press("escape")
        assert board.sent == []
        assert isinstance(board.app.screen, LiveScreen)
        assert "a Answer" in board.lines[-1]
        await board.press("a", "enter")
        assert board.sent == [Answer("q1", ("v1",))]


async def test_w31_question_never_locks_the_doors_and_scrolls_to_every_choice() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.feed(question(40))
        assert "choice 39" not in board.text
        await board.press("G")
        assert "choice 39" in board.text
        await board.press("q")
        assert isinstance(board.app.screen, QuitDialog)
