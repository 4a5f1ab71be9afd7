"""The event channel: whole events, nothing but events, and never a wait for the reader."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_protocol.codec import Malformed, decode_event
from grpo_protocol.framing import LineSplitter
from grpo_protocol.messages import Ack, Dropped, Event, Generation, Log, Step
from grpo_trainer.wire import Outbox, Wire
from python_process import SECONDS, run_python, start_python

PRELUDE = """
import os, signal, subprocess, sys, time
from grpo_protocol.messages import *
from grpo_trainer.wire import Wire
"""


def step(number: int, loss: float | None = 0.5) -> Step:
    return Step(step=number, loss=loss, total_tokens=8)


def generation(size: int, index: int = 0) -> Generation:
    return Generation(index=index, prompt="p", completion="c" * size, reward=1.0, tokens=1)


def decode_all(output: bytes) -> list[Event]:
    """Every line of `output` as an event; a line that is none fails the test."""
    assert not output or output.endswith(b"\n")
    events = []
    for line in output.splitlines():
        event = decode_event(line)
        assert not isinstance(event, Malformed), event
        events.append(event)
    return events


def read_events(fd: int) -> list[Event]:
    """Everything that arrives until the other end is closed."""
    output = b""
    while chunk := os.read(fd, 1 << 20):
        output += chunk
    return decode_all(output)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    with contextlib.suppress(OSError):
        os.close(reader)


def test_R02_other_output_never_mixes_with_events() -> None:
    code = (
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
    done = run_python(code)
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


def test_R22_dead_reader_is_noticed_without_a_write(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    gone = threading.Event()
    wire = Wire(writer, on_reader_gone=gone.set)
    os.close(reader)
    assert gone.wait(SECONDS)
    assert wire.reader_gone
    wire.close()


def test_P07_stopped_reader_never_stops_training_nor_grows_memory(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer, max_bytes=1_000_000)
    for number in range(1, 201):
        wire.emit(step(number))
        wire.emit(generation(50_000, number))
        assert wire._outbox.num_bytes <= 1_000_000
    threading.Thread(target=wire.close, args=(SECONDS,)).start()
    events = read_events(reader)
    assert [event.step for event in events if isinstance(event, Step)] == list(range(1, 201))
    arrived = [event.index for event in events if isinstance(event, Generation)]
    assert arrived[-1] == 200, "the newest completions are kept"
    reports = [event for event in events if isinstance(event, Dropped)]
    assert sum(event.generations for event in reports) == 200 - len(arrived) > 0
    assert len(reports) == 1


def test_closing_does_not_wait_for_a_stopped_reader(pipe: tuple[int, int]) -> None:
    wire = Wire(pipe[1])
    wire.emit(generation(1_000_000))
    closer = threading.Thread(target=wire.close, args=(0.1,))
    closer.start()
    closer.join(SECONDS)
    assert not closer.is_alive()


def test_steps_go_only_when_nothing_else_is_left() -> None:
    outbox = Outbox(max_bytes=2_000)
    outbox.put(Ack(line=1, command="PAUSE", ok=True))
    outbox.put(Log("info", "x" * 500))
    for number in range(100):
        outbox.put(step(number))
    assert outbox.num_bytes <= 2_000
    events = decode_all(b"".join(iter(outbox.take, None)))
    assert isinstance(events[0], Ack)
    numbers = [event.step for event in events if isinstance(event, Step)]
    assert numbers == list(range(100 - len(numbers), 100))
    assert [e for e in events if isinstance(e, Dropped)] == [
        Dropped(logs=1, steps=100 - len(numbers))
    ]


def test_W23_an_event_above_the_record_cap_is_left_out_and_counted() -> None:
    outbox = Outbox()
    outbox.put(generation(9_000_000))
    outbox.put(step(1))
    events = decode_all(b"".join(iter(outbox.take, None)))
    assert events == [Dropped(generations=1), step(1)]


def test_an_event_that_cannot_be_encoded_is_a_log_line() -> None:
    outbox = Outbox()
    outbox.put(Step(step=1, loss=0.5, total_tokens=1, metrics={"x": object()}))  # type: ignore[dict-item]
    (event,) = decode_all(b"".join(iter(outbox.take, None)))
    assert isinstance(event, Log)
    assert event.level == "error"


@pytest.mark.parametrize("blocking", [True, False])
def test_R01_a_5_mb_event_arrives_whole(pipe: tuple[int, int], blocking: bool) -> None:
    reader, writer = pipe
    os.set_blocking(writer, blocking)
    wire = Wire(writer)
    wire.emit(generation(5_000_000))
    wire.emit(step(2))
    threading.Thread(target=wire.close, args=(SECONDS,)).start()
    assert read_events(reader) == [generation(5_000_000), step(2)]


def test_W19_R05_a_loss_that_is_not_finite_arrives_as_unknown(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer)
    wire.emit(step(1, float("nan")))
    wire.emit(step(2, float("-inf")))
    wire.close()
    assert read_events(reader) == [step(1, None), step(2, None)]


def test_R07_lone_surrogates_and_nul_arrive(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer)
    wire.emit(Log("info", "a\ud83d\x00\x1b[2J"))
    wire.close()
    assert read_events(reader) == [Log("info", "a\ufffd\x00\x1b[2J")]


def test_events_of_many_threads_stay_whole_lines(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer)

    def talk(name: int) -> None:
        for number in range(200):
            wire.emit(step(name * 1000 + number))

    threads = [threading.Thread(target=talk, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wire.close()
    numbers = [event.step for event in read_events(reader) if isinstance(event, Step)]
    assert sorted(numbers) == [name * 1000 + number for name in range(4) for number in range(200)]
    for name in range(4):
        mine = [number for number in numbers if number // 1000 == name]
        assert mine == sorted(mine)


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


def test_only_the_main_thread_takes_over() -> None:
    errors: list[BaseException] = []

    def take_over() -> None:
        try:
            Wire.take_over()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=take_over)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_output_side_imports_neither_mlx_nor_rich() -> None:
    code = """
import sys
from grpo_trainer import captured_output, console, recorder, run_folder, run_log, wire
assert not {"mlx", "mlx_lm", "rich", "transformers"} & set(sys.modules), sorted(sys.modules)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr.decode()


def test_a_reader_that_splits_lines_sees_every_event(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer)
    wire.emit(Log("info", "line\u2028separator\nand newline"))
    wire.close()
    splitter = LineSplitter()
    (line,) = list(splitter.feed(os.read(reader, 1 << 16)))
    assert isinstance(line, bytes)
    assert decode_event(line) == Log("info", "line\u2028separator\nand newline")
