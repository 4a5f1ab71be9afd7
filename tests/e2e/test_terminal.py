"""The dashboard on a real terminal: every way out leaves it clean, and the trainer well."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fake_trainer
from pty_app import PtyApp, pty_app

FAKE = fake_trainer.__file__
ENDLESS = ("--steps", "100000", "--interval", "0.02")


@contextmanager
def dashboard(tmp_path: Path, *words: str, code: str = "") -> Iterator[PtyApp]:
    """`grpo-tui run` over the fake trainer; `code` runs first in the dashboard's process."""
    start = f"{code}\nfrom grpo_tui.cli import main\nmain()"
    argv = [sys.executable, "-c", start, "run", "--", sys.executable, FAKE, *words]
    done = str(tmp_path / "done")
    with pty_app([*argv, "--done-file", done], tmp_path) as app:
        yield app


def trainer_says(tmp_path: Path) -> str:
    done = tmp_path / "done"
    return done.read_text() if done.exists() else ""


def test_quit_stops_saves_and_leaves_a_clean_terminal(tmp_path: Path) -> None:
    with dashboard(tmp_path, *ENDLESS) as app:
        app.shows("running")
        # A terminal that reports its size in the stream also gets the mouse's pixel mode.
        app.press(b"\x1b[?2048;2$y")
        app.until(lambda: b"\x1b[?1016h" in app.output)
        app.press(b"q")
        app.shows("Stay")
        app.press(b"y")
        assert app.ended() == 0
        assert app.left_on() == set()
        assert trainer_says(tmp_path) == "stopped"
        last = app.text().split("\r\n")[-3:]
        assert last[0].endswith("folder outputs/fake")
        assert "--resume latest --output-dir outputs/fake" in last[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_restore_the_terminal_and_the_trainer_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    with dashboard(tmp_path, "--steps", "60", "--interval", "0.05") as app:
        app.shows("running")
        app.process.send_signal(number)
        assert app.ended() == 128 + number
        assert app.left_on() == set()
        assert "goes on without the dashboard" in app.text()
        app.until(lambda: trainer_says(tmp_path) == "completed")


def test_r22_killed_dashboard_leaves_a_trainer_that_finishes(tmp_path: Path) -> None:
    with dashboard(tmp_path, "--steps", "60", "--interval", "0.05") as app:
        app.shows("running")
        app.process.kill()
        app.until(lambda: trainer_says(tmp_path) == "completed")


def test_r20_ctrl_c_asks_and_staying_leaves_training_untouched(tmp_path: Path) -> None:
    with dashboard(tmp_path, *ENDLESS) as app:
        app.shows("running")
        app.press(b"\x03")
        app.shows("Stay")
        app.press(b"n")
        app.press(b"q")
        app.shows_anew("Stay")
        app.press(b"y")
        assert app.ended() == 0
        assert trainer_says(tmp_path) == "stopped"


def test_bytes_from_the_keyboard_that_are_not_utf8_do_not_end_the_app(tmp_path: Path) -> None:
    with dashboard(tmp_path, *ENDLESS) as app:
        app.shows("running")
        app.press(b"\xff\xfe\x80")
        app.press(b"q")
        app.shows("Stay")
        app.press(b"y")
        assert app.ended() == 0


def test_refused_input_is_shown_and_its_exit_code_passed_on(tmp_path: Path) -> None:
    with dashboard(tmp_path, "--refuse", "group_size=1: must be at least 2") as app:
        app.shows("failed")
        app.press(b"q")
        assert app.ended() == 2
        assert app.left_on() == set()
        assert "grpo-tui: group_size=1: must be at least 2" in app.text()


def test_crash_of_the_dashboard_writes_a_report_and_spares_the_trainer(tmp_path: Path) -> None:
    code = """
import grpo_tui.app as app
from grpo_protocol.messages import Step
real = app.apply
def broken(state, item):
    hidden_local = "PROMPT-IN-A-LOCAL"
    if isinstance(item, Step) and item.step == 5:
        raise ZeroDivisionError("broken on request")
    real(state, item)
app.apply = broken
"""
    with dashboard(tmp_path, "--steps", "60", "--interval", "0.05", code=code) as app:
        assert app.ended() == 1
        assert app.left_on() == set()
        text = app.text()
        assert "grpo-tui has crashed (ZeroDivisionError: broken on request)" in text
        assert "PROMPT-IN-A-LOCAL" not in text
        reports = list((tmp_path / "state" / "grpo-tui").glob("crash-*.txt"))
        assert len(reports) == 1
        assert "ZeroDivisionError" in reports[0].read_text()
        app.until(lambda: trainer_says(tmp_path) == "completed")


def test_all_is_over_when_the_run_is_and_q_leaves_at_once(tmp_path: Path) -> None:
    with dashboard(tmp_path, "--steps", "3", "--interval", "0.02") as app:
        app.shows("complete")
        app.press(b"q")
        assert app.ended() == 0
        assert app.left_on() == set()
        assert "run fake: complete after 3 steps" in app.text()
