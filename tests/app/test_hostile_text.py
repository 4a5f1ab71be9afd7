"""Completions, prompts, logs and names are hostile: nothing of them may reach the terminal as code,
be taken as markup, or be missing."""

import re

import pytest

from dashboard import Dashboard, dashboard
from grpo_protocol.config import ConfigValues
from grpo_protocol.messages import (
    Choice,
    DatabasePath,
    EpochStart,
    Failed,
    Generation,
    Init,
    Log,
    Prompt,
    Status,
    Step,
)
from grpo_tui.notices import ChildStarted

HOSTILE = (
    "[red]red[/red] [/foo] [b [@click=app.quit]x[/] $x ${y} "
    "\x1b[31mESC \x1b]0;title\x07 \x9b31m \x00\x08\x7f "
    "\u202egnp.exe\u202c \u2066x\u2069 zero\u200bwidth \U000e0041 "
    "👨‍👩‍👧 🇩🇪 漢字 e\u0301 \ud800 \u2028line \x85next\ttab\r\n"
)
# What may stand on a screen: no control characters, nothing that turns or hides text.
FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ud800-\udfff]")
VIEWS = (["1"], ["2"], ["3"], ["5"], ["2", "enter"], ["v"], ["right_square_bracket"], ["escape"])


async def tell(board: Dashboard, completion: str = HOSTILE) -> None:
    config = ConfigValues(model=HOSTILE, run_name=HOSTILE, reward=[HOSTILE], group_size=2)
    metrics: dict[str, float | None] = {f"rewards/{HOSTILE}/mean": 0.5, HOSTILE: None}
    await board.feed(
        ChildStarted(1),
        Status(HOSTILE, HOSTILE),
        DatabasePath("outputs.db", HOSTILE, HOSTILE),
        Init(HOSTILE, config, 10),
        EpochStart(1, 1, 10),
        Log("warn", HOSTILE, "stderr"),
        Step(1, None, 10, mean_reward=0.5, metrics=metrics),
        *(
            Generation(
                index, HOSTILE, completion, 0.5, 5, {HOSTILE: 1.0}, step=1, prompt_index=0,
                group_index=index, finish_reason=HOSTILE, expected_answer=HOSTILE,
                thinking=HOSTILE,
            )
            for index in range(2)
        ),
    )  # fmt: skip


def check(board: Dashboard) -> None:
    for line in board.lines:
        assert not FORBIDDEN.search(line), ascii(line)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)])
async def test_hostile_text_is_shown_and_never_obeyed(size: tuple[int, int]) -> None:
    async with dashboard(size) as board:
        await tell(board)
        check(board)
        for keys in VIEWS:
            await board.press(*keys)
            check(board)
        assert board.app.is_running


async def test_markup_stands_on_the_screen_as_it_came() -> None:
    async with dashboard((120, 40)) as board:
        await tell(board)
        await board.press("2", "enter")
        assert "[red]red[/red] [/foo] [b [@click=app.quit]x[/]" in board.text


async def test_hostile_question_and_failure_are_plain_text() -> None:
    async with dashboard((80, 24)) as board:
        await tell(board)
        choices = [Choice("v", HOSTILE, HOSTILE)]
        await board.feed(Prompt("id", HOSTILE, choices, False))
        check(board)
        assert "[red]red[/red]" in board.text
        await board.press("escape")
        await board.feed(Failed(HOSTILE, 1, hint=HOSTILE))
        check(board)
        await board.until(lambda: "[red]red[/red]" in board.lines[0] or "[red]" in board.text)


async def test_completion_of_five_megabytes_is_opened_and_scrolled() -> None:
    async with dashboard((80, 24)) as board:
        await tell(board, completion="word [/x] \x1b[0m " * 350_000)
        await board.press("2", "enter", "G")
        check(board)
        assert "more characters" in board.text
        await board.press("v", "end", "g", "escape")
        check(board)


async def test_filter_text_is_plain() -> None:
    async with dashboard((80, 24)) as board:
        await tell(board)
        await board.press("slash", "left_square_bracket", "slash", "x", "enter")
        check(board)
        assert board.app.is_running
