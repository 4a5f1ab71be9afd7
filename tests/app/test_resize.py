"""The dashboard at every size a terminal can have."""

import random

import pytest

from dashboard import dashboard
from grpo_protocol.messages import Choice, Prompt
from grpo_tui.drawing.layouts import layout_for
from grpo_tui.widgets.metric_list import MetricList

SIZES = [
    (1, 1),
    (2, 1),
    (1, 40),
    (200, 1),
    (19, 4),
    (20, 5),
    (59, 15),
    (60, 16),
    (99, 30),
    (300, 80),
]
DOORS = (["1"], ["2"], ["3"], ["4"], ["5"], ["2", "enter"], ["question_mark"], ["q"])


@pytest.mark.parametrize(
    ("size", "layout"),
    [
        ((160, 50), "wide"),
        ((120, 30), "wide"),
        ((100, 30), "middle"),
        ((99, 30), "narrow"),
        ((120, 29), "narrow"),
        ((80, 24), "narrow"),
        ((60, 16), "narrow"),
        ((59, 24), "tiny"),
        ((80, 15), "tiny"),
        ((19, 24), "micro"),
        ((80, 4), "micro"),
    ],
)
def test_layout_follows_the_size(size: tuple[int, int], layout: str) -> None:
    assert layout_for(*size) == layout


@pytest.mark.parametrize("keys", DOORS)
async def test_no_size_breaks_any_view(keys: list[str]) -> None:
    rng = random.Random(repr(keys))
    sizes = [*SIZES, *((rng.randint(1, 220), rng.randint(1, 70)) for _ in range(3))]
    rng.shuffle(sizes)
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.steps(1, 12)
        await board.press(*keys)
        for width, height in sizes:
            await board.resize(width, height)
            assert len(board.lines) == height
            assert all(len(line) <= width for line in board.lines)
        assert board.app.is_running


async def test_question_fits_every_size() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        choices = [Choice(str(n), f"choice {n}") for n in range(30)]
        await board.feed(Prompt("q", "line\n" * 40, choices, True))
        for width, height in SIZES:
            await board.resize(width, height)
            await board.press("j", "space")
        assert board.app.is_running


async def test_smallest_screens_still_tell_the_state_and_the_way_out() -> None:
    async with dashboard((19, 4)) as board:
        await board.begin()
        await board.steps(1, 3)
        assert "▶ running 3" in board.text
        assert "q quit"[:3] in board.text


async def test_narrow_screen_comes_back_whole_after_it_was_wide() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.steps(1, 5)
        before = board.text
        for size in ((130, 45), (30, 10), (80, 24)):
            await board.resize(*size)
        assert board.text == before


@pytest.mark.parametrize("size", [(120, 40), (100, 30), (80, 24), (79, 14)])
async def test_a_pane_alone_takes_the_whole_screen(size: tuple[int, int]) -> None:
    async with dashboard(size) as board:
        await board.begin()
        await board.steps(1, 5)
        await board.press("5")
        metrics = board.live.query_one(MetricList)
        metrics.focus()
        await board.press("z")
        assert metrics.size.height >= size[1] - 3  # a border and the footer at most
        await board.press("z")
        assert metrics.size.height < size[1] - 3
