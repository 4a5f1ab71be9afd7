"""The end of a process and the end of what it wrote are two things."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.codec import Malformed
from grpo_protocol.messages import Failed, Hello, Log
from grpo_tui.child.child import Child
from grpo_tui.notices import ChildExited, ChildStarted, Item
from supervised import supervised


async def test_start_is_told_before_anything_that_the_child_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the child has said it all before we come to read."""

    class SlowlyStarted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(subprocess, "Popen", SlowlyStarted)
    async with supervised("--refuse", "no reward", cwd=tmp_path) as run:
        state = await run.ended()
    assert [type(item) for item in run.items][:4] == [ChildStarted, Hello, Failed, ChildExited]
    assert state.failure == "no reward"


async def test_last_words_on_both_pipes_are_read(tmp_path: Path) -> None:
    items: list[Item] = []
    program = "import sys; print('out'); sys.stderr.write('err' * 50_000); sys.exit(3)"
    argv = [sys.executable, "-c", program]
    child = Child.spawn(argv, tmp_path, {}, items.append, lambda line, reason: None)
    await child.attach()
    assert await child.finished() == 3
    assert {item.text for item in items if isinstance(item, Malformed)} == {"out"}
    [line] = [item for item in items if isinstance(item, Log)]
    assert line.message.endswith("errerr")


async def test_fault_of_a_handler_is_raised(tmp_path: Path) -> None:
    def broken(item: Item) -> None:
        raise ZeroDivisionError

    argv = [sys.executable, "-c", "print('x', flush=True); input()"]
    child = Child.spawn(argv, tmp_path, {}, broken, lambda line, reason: None)
    await child.attach()
    with pytest.raises(ZeroDivisionError):
        await child.finished()
    child.release()
    assert await child.exited(20.0)
