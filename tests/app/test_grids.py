"""What the dashboard looks like, cell by cell, at the sizes that people use.

The grids lie beside this file as text; `GRPO_UPDATE_GRIDS=1 pytest tests/app/test_grids.py` writes
them anew. Look at the difference before committing it.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard import dashboard
from grpo_protocol.messages import Checkpoint, Eval, Log

GRIDS = Path(__file__).parent / "grids"
UPDATE = "GRPO_UPDATE_GRIDS"
SIZES = ((120, 40), (100, 30), (80, 24), (60, 16), (40, 12))
VIEWS = {
    "samples": ("2",),
    "logs": ("1",),
    "config": ("3",),
    "charts": ("5", "left", "left"),
    "detail": ("2", "j", "enter"),
    "quit": ("q",),
}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def drawn(size: tuple[int, int], keys: tuple[str, ...], *, ascii_only: bool = False) -> str:
    async with dashboard(size, ascii_only=ascii_only) as board:
        await board.begin(steps=60)
        await board.feed(Eval(0, "greedy", 200, {"accuracy": 0.37}))
        await board.steps(1, 24)
        await board.feed(
            Checkpoint("checkpoint-20", 20, "periodic"),
            Log("warn", "one call of reward function 'format' took 0.9 s", "reward"),
        )
        board.clock.move(9)
        await board.press(*keys)
        return board.text + "\n"


def compare(name: str, text: str) -> None:
    path = GRIDS / f"{name}.txt"
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} looks different; {UPDATE}=1 accepts"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("view", VIEWS)
async def test_view_looks_as_before(view: str, size: tuple[int, int]) -> None:
    compare(f"{view}-{size[0]}x{size[1]}", await drawn(size, VIEWS[view]))


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_ascii_view_looks_as_before(size: tuple[int, int]) -> None:
    text = await drawn(size, ("2",), ascii_only=True)
    assert text.replace("…", "").isascii()
    compare(f"ascii-{size[0]}x{size[1]}", text)
