"""What a program prints, turned into readable lines."""

from pathlib import Path

import pytest

from grpo_trainer.output.captured_output import IN_PLACE_SECONDS, MAX_LINE_BYTES, OutputLines
from python_process import run_python

PRELUDE = """
import os, subprocess, sys, threading
from grpo_trainer.output.captured_output import CapturedOutput
lines, errors = [], []
def on_line(source, text):
    lines.append((source, text))
captured = CapturedOutput(on_line, errors.append)
"""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_of(*chunks: bytes) -> list[str]:
    output = OutputLines()
    return [line for chunk in chunks for line in output.feed(chunk)] + list(output.flush())


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"on", b"e\nun", b"finished"], ["one", "unfinished"]),
        ([b"dos\r\nline\r", b"\nend\r\n"], ["dos", "line", "end"]),
        ([b"\n  \n  indented\n"], ["  indented"]),
        ([b"a\r", b"\nb\r", b"\nc\r", b"\n"], ["a", "b", "c"]),
        (["half ä".encode()[:-1], "ä".encode()[1:] + b"\n"], ["half ä"]),
        ([b"bad \xff\xfe bytes\n"], ["bad \ufffd\ufffd bytes"]),
        ([b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07text\x00\n"], ["red text"]),
        ([b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1bc\x9b2J done\n"], ["link \ufffd2J done"]),
        (["a\u2028b\n".encode()], ["ab"]),
    ],
)
def test_lines(chunks: list[bytes], lines: list[str]) -> None:
    assert lines_of(*chunks) == lines


def test_a_line_without_end_costs_no_memory_and_not_the_next_line() -> None:
    output = OutputLines()
    assert not list(output.feed(b"x" * (MAX_LINE_BYTES + 1)))
    assert list(output.feed(b"\nnext\n")) == [
        f"(a line of {MAX_LINE_BYTES + 1} bytes was left out)",
        "next",
    ]


def test_a_progress_bar_is_looked_at_now_and_then_and_at_its_end() -> None:
    clock = Clock()
    output = OutputLines(clock)
    seen = []
    for percent in range(100):
        seen += list(output.feed(f"\r{percent}%".encode()))
        clock.now += IN_PLACE_SECONDS / 10
    seen += list(output.feed(b"\r100%\nafter\n"))
    assert seen == [*(f"{percent}%" for percent in range(0, 100, 10)), "100%", "after"]


def test_two_bars_after_each_other_both_start_at_once() -> None:
    output = OutputLines(Clock())
    assert list(output.feed(b"a 0%\ra 1%\ra 2%\nb 0%\rb 1%\rb 2%\n")) == [
        "a 0%",
        "a 2%",
        "b 0%",
        "b 2%",
    ]


def test_what_a_bar_shows_at_its_end_is_seen() -> None:
    output = OutputLines(Clock())
    assert list(output.feed(b"98%\r99%\r100%\r")) == ["98%"]
    assert list(output.feed(b"\n")) == ["100%"]


def test_a_child_that_keeps_the_pipe_is_not_waited_for_nor_broken(tmp_path: Path) -> None:
    code = (
        PRELUDE
        + """
gate, release = os.pipe()
script = "read line; echo late; echo later && echo fine > $1"
child = subprocess.Popen(["sh", "-c", script, "sh", sys.argv[1]], stdin=gate)
os.write(1, b"early\\n")
captured.close()
assert lines == [("stdout", "early")], lines
os.write(release, b"go\\n")
assert child.wait(30) == 0
assert lines == [("stdout", "early")], lines
"""
    )
    done = run_python(code, str(tmp_path / "proof"))
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)
    assert (tmp_path / "proof").read_text() == "fine\n"


def test_a_flood_reaches_the_end_whole() -> None:
    code = (
        PRELUDE
        + """
for number in range(20000):
    print(number)
captured.close()
assert lines == [("stdout", str(number)) for number in range(20000)]
"""
    )
    done = run_python(code)
    assert (done.stderr, done.returncode) == (b"", 0)


def test_a_listener_that_fails_does_not_block_those_who_print() -> None:
    code = (
        PRELUDE.replace("lines.append((source, text))", "raise ValueError(text)")
        + """
for number in range(20000):
    print(number)
captured.close()
assert len(errors) == 20000
"""
    )
    done = run_python(code)
    assert (done.stderr, done.returncode) == (b"", 0)


def test_a_fork_that_prints_a_lot_outlives_its_parent() -> None:
    code = (
        PRELUDE
        + """
if os.fork() == 0:
    sys.stdout.flush()
    for number in range(1000):
        os.write(1, b"from the fork\\n")
    captured.close()
    os._exit(0)
os.wait()
captured.close()
assert lines == [("stdout", "from the fork")] * 1000, lines[:3]
"""
    )
    done = run_python(code)
    assert (done.stderr, done.returncode) == (b"", 0)


def test_a_program_with_its_own_stdout_object_is_left_alone() -> None:
    code = (
        "import io, sys\nsys.stdout = io.StringIO()\n"
        + PRELUDE
        + """
print("kept by the program")
captured.close()
assert sys.stdout.getvalue() == "kept by the program\\n"
assert lines == []
"""
    )
    done = run_python(code)
    assert (done.stderr, done.returncode) == (b"", 0)
