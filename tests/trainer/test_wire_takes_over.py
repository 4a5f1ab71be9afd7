"""A process whose stdout is the event channel: nothing else gets on it, and nobody is hurt."""

import signal
from pathlib import Path

from grpo_protocol.codec import decode_event
from grpo_protocol.messages import Log, Step
from python_process import SECONDS, run_python, start_python
from wire_events import decode_all

PRELUDE = """
import os, signal, subprocess, sys, time
from grpo_protocol.messages import *
from grpo_trainer.output.wire import Wire
"""


TALKATIVE = (
    PRELUDE
    + """
import ctypes, multiprocessing, warnings
wire = Wire.take_over()
wire.emit(Hello(1, "0", os.getpid()))
print("plain print")
print('{"type":"step","step":999,"loss":0,"totalTokens":1}')
for percent in range(0, 100, 5):
    print(f"\\r{percent}%", end="")
print()
os.write(1, b"raw write\\n")
os.write(2, b"raw \\xff error\\n")
subprocess.run(["sh", "-c", "echo from a child"])
ctypes.CDLL(None).printf(b"from C\\n")
warnings.warn("take care")
fork = multiprocessing.get_context("fork").Process(target=print, args=("from a fork",))
fork.start(); fork.join()
print("unfinished", end="")
wire.emit(Step(step=1, loss=0.5, total_tokens=1))
wire.close()
"""
)


def test_R02_other_output_never_mixes_with_events() -> None:
    done = run_python(TALKATIVE)
    events = decode_all(done.stdout)
    assert [event.step for event in events if isinstance(event, Step)] == [1]
    lines = {(event.source, event.message) for event in events if isinstance(event, Log)}
    for wanted in (
        ("stdout", "plain print"),
        ("stdout", '{"type":"step","step":999,"loss":0,"totalTokens":1}'),
        ("stdout", "95%"),
        ("stdout", "raw write"),
        ("stderr", "raw \ufffd error"),
        ("stdout", "from a child"),
        ("stdout", "from C"),
        ("stdout", "from a fork"),
        ("stdout", "unfinished"),
    ):
        assert wanted in lines
    assert any("take care" in text for source, text in lines if source == "stderr")
    assert (done.stderr, done.returncode) == (b"", 0)


def test_output_is_shown_at_once_not_when_8_kib_are_full() -> None:
    code = PRELUDE + "wire = Wire.take_over()\nprint('now')\nsys.stdin.read()\n"
    with start_python(code) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert b'"now"' in process.stdout.readline()
        process.stdin.close()


def test_library_gives_stdout_and_stderr_back() -> None:
    code = (
        PRELUDE
        + """
buffering = sys.stdout.line_buffering
wire = Wire.take_over()
print("inside")
wire.close()
print("outside")
sys.stderr.write("outside too\\n")
assert sys.stdout.line_buffering == buffering
assert sorted(map(int, os.listdir("/dev/fd")))[:3] == [0, 1, 2]
"""
    )
    done = run_python(code)
    inside, outside = done.stdout.splitlines()
    assert decode_event(inside) == Log("info", "inside", "stdout")
    assert outside == b"outside"
    assert done.stderr == b"outside too\n"


def test_R23_dead_reader_is_no_broken_pipe_for_anybody(tmp_path: Path) -> None:
    code = (
        PRELUDE
        + """
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
calls, lines = [], []
wire = Wire.take_over(lambda *line: lines.append(line), on_reader_gone=lambda: calls.append(1))
wire.emit(Hello(1, "0", os.getpid()))
while not wire.reader_gone:
    wire.emit(Step(step=1, loss=0.5, total_tokens=1))
    time.sleep(0.01)
print("still heard")
wire.emit(Step(step=2, loss=0.5, total_tokens=1))
wire.close()
print("into the void " * 10000)
open(sys.argv[1], "w").write(repr((calls, lines)))
"""
    )
    with start_python(code, str(tmp_path / "result")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) == 0
    assert (tmp_path / "result").read_text() == repr(([1], [("stdout", "still heard")]))


def test_a_fork_neither_speaks_on_the_channel_nor_holds_it_open() -> None:
    code = (
        PRELUDE
        + """
wire = Wire.take_over()
if (child := os.fork()) == 0:
    wire.emit(Step(step=999, loss=0.5, total_tokens=1))
    print("from the fork")
    sys.stdout.flush()
    os.setsid()
    if os.fork() == 0:
        os.read(0, 1)
    sys.exit(0)
os.waitpid(child, 0)
wire.emit(Step(step=1, loss=0.5, total_tokens=1))
wire.close()
"""
    )
    with start_python(code) as process:
        assert process.stdout is not None
        # Ends although the grandchild lives on, until its stdin ends.
        events = decode_all(process.stdout.read())
        assert process.wait(SECONDS) == 0
    assert [event.step for event in events if isinstance(event, Step)] == [1]
    assert Log("info", "from the fork", "stdout") in events


def test_a_fork_in_the_middle_of_an_event_does_not_hang() -> None:
    code = (
        PRELUDE
        + """
import threading
wire = Wire.take_over()
held, go_on = threading.Event(), threading.Event()
def hold():
    with wire._changed:
        held.set()
        go_on.wait()
threading.Thread(target=hold).start()
held.wait()
if (child := os.fork()) == 0:
    wire.emit(Step(step=1, loss=0.5, total_tokens=1))
    wire.close()
    os._exit(0)
os.waitpid(child, 0)
go_on.set()
"""
    )
    assert run_python(code).returncode == 0


def test_C_output_without_newline_is_not_lost() -> None:
    code = (
        PRELUDE
        + """
import ctypes
wire = Wire.take_over()
ctypes.CDLL(None).printf(b"from C at once\\n")
print(input())
ctypes.CDLL(None).printf(b"unfinished")
wire.close()
"""
    )
    with start_python(code) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert b"from C at once" in process.stdout.readline()
        process.stdin.write(b"go on\n")
        process.stdin.close()
        rest = decode_all(process.stdout.read())
    assert rest == [Log("info", "go on", "stdout"), Log("info", "unfinished", "stdout")]


def test_last_words_of_a_crash_reach_the_old_stderr() -> None:
    code = PRELUDE + "import faulthandler\nWire.take_over()\nfaulthandler._sigsegv()\n"
    done = run_python(code)
    assert done.returncode == -signal.SIGSEGV
    assert b"Segmentation fault" in done.stderr


def test_events_are_written_although_the_program_forgets_to_close() -> None:
    code = PRELUDE + "Wire.take_over().emit(Log('info', 'last'))\nraise SystemExit(3)\n"
    done = run_python(code)
    assert done.returncode == 3
    assert decode_all(done.stdout) == [Log("info", "last")]


def test_closed_standard_streams_are_not_confused_with_our_pipes() -> None:
    code = (
        PRELUDE
        + """
for fd in (0, 1, 2):
    os.close(fd)
wire = Wire.take_over()
wire.emit(Log("info", "nobody"))
assert os.read(0, 10) == b""
os.write(1, b"text\\n")
wire.close()
"""
    )
    assert run_python(code).returncode == 0


def test_output_side_imports_neither_mlx_nor_rich() -> None:
    code = """
import sys
from grpo_trainer.output import captured_output, console, recorder, run_log, wire
from grpo_trainer import run_folder
assert not {"mlx", "mlx_lm", "rich", "transformers"} & set(sys.modules), sorted(sys.modules)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr.decode()
