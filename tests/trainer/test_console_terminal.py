"""The console on terminals of all kinds, and on streams that go away."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from grpo_protocol.config import GRPOConfig, config_values
from grpo_protocol.messages import (
    Complete,
    Init,
    Log,
    PhaseChange,
    Step,
)
from grpo_trainer.output.console import Console
from python_process import SECONDS, run_python, start_python


def step(number: int, **fields: Any) -> Step:
    values = {"loss": -0.0021, "total_tokens": 1840, "mean_reward": 0.534}
    return Step(step=number, **(values | fields))


def init(max_steps: int | None) -> Init:
    return Init("tiny", config_values(GRPOConfig()), max_steps)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_R23_a_closed_stream_ends_neither_training_nor_the_exit_code(stream: str) -> None:
    code = """
import sys
from grpo_protocol.messages import *
from grpo_trainer.output.console import Console
console = Console()
sys.stdin.read()
for number in range(1000):
    console.handle(Step(step=number, loss=0.5, total_tokens=1))
    console.handle(Log("warn", "careful"))
console.handle(Complete(1000, 1.0))
console.close()
"""
    with start_python(code) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        closed, other = process.stdout, process.stderr
        if stream == "stderr":
            closed, other = other, closed
        closed.close()
        process.stdin.close()
        text = other.read()
        assert process.wait(SECONDS) == 0
    assert b"Traceback" not in text
    assert b"BrokenPipe" not in text
    assert len(text.splitlines()) >= 1000


def test_a_program_without_streams_trains_on() -> None:
    code = """
import os, sys
sys.stdout = sys.stderr = None
from grpo_protocol.messages import *
from grpo_trainer.output.console import Console
console = Console()
console.handle(Step(step=1, loss=0.5, total_tokens=1))
console.handle(Failed("broken", 1))
console.close()
"""
    assert run_python(code).returncode == 0


class Terminal:
    """A pseudo-terminal 100 columns wide."""

    def __init__(self) -> None:
        self._reader, writer = pty.openpty()
        self.stream = os.fdopen(writer, "w", encoding="utf-8")

    def text(self) -> str:
        """Everything shown; ends the terminal."""
        self.stream.close()
        output = b""
        try:
            while chunk := os.read(self._reader, 1 << 16):
                output += chunk
        except OSError:  # how Linux tells that the other end is closed
            pass
        os.close(self._reader)
        return output.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    yield terminal
    if not terminal.stream.closed:
        terminal.text()


def test_a_terminal_gets_one_bar_with_lines_above_it(terminal: Terminal) -> None:
    console = Console(out=terminal.stream, err=terminal.stream)
    console.handle(init(20))
    console.handle(PhaseChange(1, "generating", 3, 8))
    for i in range(1, 21):
        console.handle(step(i))
    console.handle(Log("info", "[bold]:smile: from a \x1b]0;title\x07 reward"))
    console.handle(Log("warn", "careful"))
    console.handle(Complete(20, 1.0, "completed"))
    console.close()
    text = terminal.text()
    assert "20/20" in text
    assert "reward 0.534" in text
    assert r"[bold]:smile: from a \x1b]0;title\x07 reward" in text
    assert "warning: careful" in text
    assert "completed: 20 steps" in text
    assert "step 7/20  reward" not in text, "a bar instead of lines"
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0, "the cursor is back"


def test_an_unforeseen_end_gives_the_cursor_back(terminal: Terminal) -> None:
    code = """
from grpo_protocol.config import GRPOConfig, config_values
from grpo_protocol.messages import *
from grpo_trainer.output.console import Console
Console().handle(Init("tiny", config_values(GRPOConfig()), 2))
raise SystemExit(3)
"""
    process = subprocess.run([sys.executable, "-c", code], stdout=terminal.stream, check=False)
    assert process.returncode == 3
    text = terminal.text()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0


def test_no_color_is_honoured(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(out=terminal.stream, err=terminal.stream)
    console.handle(init(2))
    console.handle(step(1))
    console.close()
    text = terminal.text()
    assert "1/2" in text
    assert "\x1b[3" not in text
    assert "\x1b[38" not in text


def test_a_dumb_terminal_gets_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = Console(out=terminal.stream, err=terminal.stream)
    console.handle(init(2))
    console.handle(step(1))
    console.close()
    text = terminal.text()
    assert "\x1b" not in text
    assert "step 1/2  reward 0.534" in text
