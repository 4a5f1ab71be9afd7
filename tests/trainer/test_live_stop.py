"""What ends a run: STOP, signals, and a dashboard that is gone."""

import signal
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import (
    Applied,
    Checkpoint,
    Complete,
    EpochEnd,
    Failed,
    Log,
    Paused,
    PhaseChange,
    Resumed,
    Step,
)
from live_runs import applied, stop


def test_STOP_during_a_long_generation_ends_at_the_next_token(start: Any, tmp_path: Path) -> None:
    """20,000 tokens would take minutes. The step is left out, what was done before is kept."""
    before = start()
    before.wait_for(Step, lambda event: event.step == 2)
    stop(before)
    done = before.all(Complete)[0].total_steps
    long = {"max_completion_length": 20_000, "batch_size": 1, "group_size": 2}
    trainer = start(**long, resume_from_checkpoint="latest")
    trainer.wait_for(PhaseChange, lambda event: event.phase == "generating")
    stop(trainer)
    assert not trainer.all(Step)
    answer = applied(trainer, 1)
    assert (answer.ok, answer.path) == (True, str(tmp_path / "run" / f"checkpoint-{done}"))
    tail = [event for event in trainer.events() if isinstance(event, EpochEnd | Complete)]
    assert [type(event) for event in tail] == [EpochEnd, Complete]
    assert trainer.all(Complete)[0].status == "stopped"
    assert trainer.all(Complete)[0].total_steps == done


def test_STOP_saves_and_ends_in_order(start: Any, tmp_path: Path) -> None:
    trainer = start()
    trainer.wait_for(Step, lambda event: event.step == 2)
    stop(trainer)
    (complete,) = trainer.all(Complete)
    done = complete.total_steps
    (checkpoint,) = trainer.all(Checkpoint)
    assert (checkpoint.kind, checkpoint.step) == ("stop", done)
    assert checkpoint.path == str(tmp_path / "run" / f"checkpoint-{done}")
    answer = applied(trainer, 1)
    assert (answer.ok, answer.path) == (True, checkpoint.path)
    tail = [e for e in trainer.events() if isinstance(e, Checkpoint | EpochEnd | Complete | Step)]
    assert [type(event) for event in tail[-3:]] == [Checkpoint, EpochEnd, Complete]
    assert (complete.status, complete.reason) == ("stopped", "STOP")
    assert trainer.events()[-1] is complete
    assert not (tmp_path / "run" / "final").exists()


def test_STOP_right_after_a_save_does_not_save_again(start: Any) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send("PAUSE", "SAVE_CHECKPOINT")
    saved = applied(trainer, 2)
    stop(trainer)
    assert len(trainer.all(Checkpoint)) == 1
    assert applied(trainer, 3).path == saved.path


def test_what_was_asked_before_STOP_in_the_same_breath_is_answered(start: Any) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send("SAVE_CHECKPOINT", "STOP", "RESUME")
    assert trainer.wait() == 0
    answers = trainer.all(Applied)
    assert sorted(answer.line for answer in answers) == [1, 2, 3]
    saved, halted, late = (applied(trainer, line) for line in (1, 2, 3))
    assert saved.ok
    assert halted.ok
    assert saved.path == halted.path
    assert Path(saved.path or "", "manifest.json").exists()
    assert late.message in ("the run has ended", "no change")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_is_the_exit_code(
    start: Any, tmp_path: Path, number: signal.Signals
) -> None:
    trainer = start()
    trainer.wait_for(Step, lambda event: event.step == 2)
    trainer.kill(number)
    assert trainer.wait() == 128 + number
    (checkpoint,) = trainer.all(Checkpoint)
    assert Path(checkpoint.path, "manifest.json").exists()
    (complete,) = trainer.all(Complete)
    assert (complete.status, complete.reason) == ("stopped", number.name)
    assert not trainer.all(Failed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_heard_while_paused_and_while_generating(
    start: Any, number: signal.Signals
) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send("PAUSE")
    trainer.wait_for(Paused)
    trainer.kill(number)
    assert trainer.wait() == 128 + number


# --- when the dashboard is gone


def test_R25_the_end_of_input_is_no_command(start: Any) -> None:
    trainer = start(max_steps=3)
    trainer.close_stdin()
    assert trainer.wait() == 0
    assert trainer.all(Complete)[0].status == "completed"
    assert len(trainer.all(Step)) == 3


def test_R25_a_paused_run_without_anybody_left_goes_on(start: Any) -> None:
    trainer = start(max_steps=3)
    trainer.send("PAUSE")
    trainer.wait_for(Paused)
    trainer.close_stdin()
    assert trainer.wait() == 0
    assert trainer.all(Complete)[0].status == "completed"
    assert len(trainer.all(Resumed)) == 1
    assert any("nobody is left" in log.message for log in trainer.all(Log))


def test_R25_a_last_STOP_without_newline_counts(start: Any) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send_bytes(b"STOP")
    trainer.close_stdin()
    assert trainer.wait() == 0
    assert trainer.all(Complete)[0].reason == "STOP"


def test_R22_R23_without_a_reader_the_run_is_finished(start: Any, tmp_path: Path) -> None:
    trainer = start(max_steps=6)
    trainer.wait_for(Step)
    trainer.close_stdout()
    trainer.close_stdin()
    assert trainer.wait() == 0, trainer.stderr
    assert trainer.stderr == ""
    assert (tmp_path / "run" / "final" / "manifest.json").exists()


@pytest.mark.parametrize("end", ["stdin", "stdout"])
def test_on_dashboard_exit_stop_saves_and_stops(start: Any, tmp_path: Path, end: str) -> None:
    trainer = start(on_dashboard_exit="stop")
    trainer.wait_for(Step)
    if end == "stdin":
        trainer.close_stdin()
    else:
        trainer.close_stdout()
    assert trainer.wait() == 0, str(trainer)
    folders = [path.name for path in (tmp_path / "run").glob("*/")]
    assert len(folders) == 1
    assert folders[0].startswith("checkpoint-")
    assert trainer.stderr == ""
