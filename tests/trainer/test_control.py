"""Commands: what each line is answered, what the loop gets, and what the end of input means."""

import fcntl
import os
import signal
import threading
from contextlib import ExitStack

import pytest

from grpo_protocol import Event, GRPOConfig, Oversized
from grpo_protocol.commands import Pause, Resume, SaveCheckpoint, Set, Stop
from grpo_protocol.config import live_keys
from grpo_protocol.messages import Ack
from grpo_trainer.control import Control, read_commands, signals_stop
from python_process import run_python


class Heard:
    """A control with everything that it says."""

    def __init__(self, step: int = 3) -> None:
        self.acks: list[Ack] = []
        self.control = Control(GRPOConfig(), self._hear)
        self.control.step = step

    def _hear(self, event: Event) -> None:
        assert isinstance(event, Ack)
        self.acks.append(event)

    def send(self, *lines: str) -> Ack:
        for line in lines:
            self.control.receive(line.encode())
        return self.acks[-1]

    def pending(self) -> list[object]:
        taken: list[object] = []
        while found := self.control.take():
            taken.append(found.command)
        return taken


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_every_line_is_answered_at_once_with_its_number(heard: Heard) -> None:
    heard.send("PAUSE", "FOO", "", "SAVE_CHECKPOINT", "SET temperature=0.5", "STOP")
    assert [ack.line for ack in heard.acks] == [1, 2, 3, 4, 5, 6]
    assert [ack.ok for ack in heard.acks] == [True, False, False, True, True, True]
    assert [ack.command for ack in heard.acks] == [
        "PAUSE",
        "FOO",
        "",
        "SAVE_CHECKPOINT",
        "SET temperature",
        "STOP",
    ]
    assert heard.pending() == [Pause(), SaveCheckpoint(), Set("temperature", "0.5"), Stop()]
    assert {ack.step for ack in heard.acks if ack.ok} == {4}


def test_what_is_asked_while_a_step_runs_holds_from_the_one_after(heard: Heard) -> None:
    assert heard.control.begin(4)
    assert heard.send("SET temperature=0.5").step == 5
    assert not heard.control.begin(5), "what is pending holds from step 5 on"
    heard.pending()
    heard.control.step = 4
    assert heard.send("PAUSE").step == 5


@pytest.mark.parametrize("line", ["PAUSE", " PAUSE ", "PAUSE\r", "\tPAUSE  \r"])
def test_R25_space_around_a_command_does_not_count(heard: Heard, line: str) -> None:
    assert heard.send(line).ok
    assert heard.pending() == [Pause()]


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("pause", "did you mean PAUSE?"),
        ("STPO", "did you mean STOP?"),
        ("SAVE_CHECKPOINTS", "did you mean SAVE_CHECKPOINT?"),
        ("xyzzy", "known are PAUSE, RESUME, SAVE_CHECKPOINT, STOP, SET, PROMPT"),
        ("SET", "SET"),
        ("SET temperature", "SET needs key=value"),
    ],
)
def test_W21_an_unknown_line_is_refused_with_a_suggestion(
    heard: Heard, line: str, suggestion: str
) -> None:
    ack = heard.send(line)
    assert not ack.ok
    assert suggestion in (ack.message or "")
    assert heard.pending() == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("SET group_size=1", "group_size cannot be changed while training"),
        ("SET tempreature=0.5", "tempreature cannot be changed while training"),
        ("SET temperature=abc", "temperature='abc'"),
        ("SET temperature=0", "temperature=0.0"),
        ("SET learning_rate=-1", "learning_rate=-1.0"),
        ("SET learning_rate=nan", "learning_rate=nan"),
        ("SET learning_rate=1e400", "learning_rate=inf"),
        ("SET sample_display=best", "expected one of all, best_worst, random"),
        ("SET save_interval=2.5", "save_interval"),
        ("SET a=b=c", "a cannot be changed while training"),
    ],
)
def test_E16_E17_a_setting_that_cannot_be_is_refused_and_the_old_one_stays(
    heard: Heard, line: str, reason: str
) -> None:
    ack = heard.send(line)
    assert not ack.ok
    assert reason in (ack.message or "")
    assert "\n" not in (ack.message or "")
    assert heard.pending() == []
    assert heard.send("SET learning_rate=1e-6").ok


def test_a_refused_key_names_those_that_can_change(heard: Heard) -> None:
    message = heard.send("SET seed=3").message or ""
    assert all(key in message for key in live_keys())


def test_no_change_is_said(heard: Heard) -> None:
    assert heard.send("RESUME").message == "already running, no change"
    assert heard.send("PAUSE").message is None
    assert heard.send("PAUSE").message == "already paused, no change"
    assert heard.send("RESUME").message is None
    assert heard.send("RESUME").message == "already running, no change"
    assert heard.pending() == [Resume(), Pause(), Pause(), Resume(), Resume()]


def test_before_the_first_step_there_is_nothing_to_save() -> None:
    heard = Heard(step=0)
    ack = heard.send("SAVE_CHECKPOINT")
    assert (ack.ok, ack.message) == (False, "nothing to save before the first step")
    heard.control.step = 1
    assert heard.send("SAVE_CHECKPOINT").ok


def test_an_answer_that_nobody_asked_for_is_refused(heard: Heard) -> None:
    ack = heard.send("PROMPT:id-1:yes")
    assert not ack.ok
    assert "no prompt 'id-1' is waiting" in (ack.message or "")


def test_junk_is_answered_and_ends_nothing(heard: Heard) -> None:
    heard.control.receive(b"\xff\xfe\x00")
    heard.control.receive(Oversized(70000))
    assert [ack.ok for ack in heard.acks] == [False, False]
    assert "70000 bytes is too long" in (heard.acks[1].message or "")
    assert heard.send("PAUSE").ok


def test_a_signal_handler_needs_no_lock(heard: Heard) -> None:
    """It may run in the very thread that holds it."""
    with heard.control._changed:
        heard.control.request_stop(signal.SIGTERM)
    assert heard.control.stop_requested
    assert heard.control.signal_number == signal.SIGTERM


# --- reading


class Input:
    """A pipe that is read as stdin is."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.ended = threading.Event()
        read_end, self.write_end = os.pipe()
        self._reading = ExitStack()
        self._reading.enter_context(
            read_commands(self.heard.control, read_end, on_end=self.ended.set)
        )

    def write(self, data: bytes) -> None:
        os.write(self.write_end, data)

    def close(self) -> list[object]:
        os.close(self.write_end)
        assert self.ended.wait(30)
        self._reading.close()
        return self.heard.pending()


def test_W22_merged_and_split_commands_are_told_apart() -> None:
    stdin = Input()
    stdin.write(b"PAUSE\nSET temperature=0.7\nRES")
    stdin.write(b"UM")
    stdin.write(b"E\nSTOP\n")
    assert stdin.close() == [Pause(), Set("temperature", "0.7"), Resume(), Stop()]
    assert [ack.line for ack in stdin.heard.acks] == [1, 2, 3, 4]


def test_R25_a_last_command_without_a_newline_counts() -> None:
    stdin = Input()
    stdin.write(b"PAUSE\nSTOP")
    assert stdin.close() == [Pause(), Stop()]


def test_R25_megabytes_of_junk_cost_one_answer() -> None:
    stdin = Input()
    for _ in range(10):
        stdin.write(b"x" * 2**20)
    stdin.write(b"\nPAUSE\n")
    assert stdin.close() == [Pause()]
    assert len(stdin.heard.acks) == 2


def test_R25_after_the_end_of_input_nobody_reads_on() -> None:
    stdin = Input()
    stdin.close()
    for thread in threading.enumerate():
        if thread.name == "commands":
            thread.join(30)
            assert not thread.is_alive()


def test_a_descriptor_that_cannot_be_read_is_the_end_of_input() -> None:
    ended = threading.Event()
    # A low number would be given to the next descriptor that is opened.
    unused = fcntl.fcntl(0, fcntl.F_DUPFD, 500)
    os.close(unused)
    with read_commands(Heard().control, unused, on_end=ended.set):
        assert ended.wait(30)


def test_what_comes_after_the_end_is_left_to_the_program() -> None:
    heard, ended = Heard(), threading.Event()
    read_end, write_end = os.pipe()
    with read_commands(heard.control, read_end, on_end=ended.set):
        pass
    os.write(write_end, b"STOP\n")
    os.close(write_end)
    assert os.read(read_end, 100) == b"STOP\n"
    assert not ended.is_set()
    assert not any(thread.name == "commands" for thread in threading.enumerate())


# --- signals


def test_signals_ask_for_a_stop_and_are_given_back(heard: Heard) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with signals_stop(heard.control):
        signal.raise_signal(signal.SIGTERM)
        assert heard.control.stop_requested
    assert heard.control.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_at_once() -> None:
    code = """
import signal
from grpo_protocol import GRPOConfig
from grpo_trainer.control import Control, signals_stop
with signals_stop(Control(GRPOConfig(), print)):
    signal.raise_signal(signal.SIGTERM)
    print("alive", flush=True)
    signal.raise_signal(signal.SIGTERM)
    print("still alive", flush=True)
"""
    result = run_python(code)
    assert (result.returncode, result.stdout) == (-signal.SIGTERM, b"alive\n")


def test_outside_the_main_thread_no_handler_is_touched(heard: Heard) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def inside() -> None:
        with signals_stop(heard.control):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]
