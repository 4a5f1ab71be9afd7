"""How much a headless run says, to whom, and what happens when nobody listens."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import (
    Complete,
    DatabasePath,
    Generation,
    Step,
)
from stream_reader import SECONDS
from tiny_model import tiny_model
from trainers import StartTrainer, TrainerProcess, read_log, training_words

# --- what people see, and how much of it


def headless(start: StartTrainer, folder: Path, **settings: Any) -> TrainerProcess:
    trainer = start(training_words(folder, tiny_model(), max_steps=5, **settings))
    assert trainer.wait() == 0, str(trainer)
    return trainer


def steps_shown(trainer: TrainerProcess) -> list[int]:
    lines = [line for line in trainer.stdout.splitlines() if line.startswith("step ")]
    return [int(line.split()[1].split("/")[0]) for line in lines]


def steps_logged(folder: Path) -> list[int]:
    return [record["step"] for record in read_log(folder) if record["event"] == "step"]


def test_log_interval_holds_headless(start_trainer: StartTrainer, tmp_path: Path) -> None:
    trainer = headless(start_trainer, tmp_path, log_interval=2)
    assert steps_shown(trainer) == [2, 4, 5]
    assert steps_logged(tmp_path / "run") == [2, 4, 5]


def test_log_interval_holds_with_events(start_trainer: StartTrainer, tmp_path: Path) -> None:
    trainer = headless(start_trainer, tmp_path, log_interval=2, tui_mode="true")
    assert [step.step for step in trainer.all(Step)] == [1, 2, 3, 4, 5]
    assert steps_logged(tmp_path / "run") == [2, 4, 5]


def test_log_console_off_is_silent(start_trainer: StartTrainer, tmp_path: Path) -> None:
    trainer = headless(start_trainer, tmp_path, log_console="false")
    assert (trainer.stdout, trainer.stderr) == ("", "")
    assert steps_logged(tmp_path / "run") == [1, 2, 3, 4, 5]


def test_log_console_off_does_not_silence_events(
    start_trainer: StartTrainer, tmp_path: Path
) -> None:
    trainer = headless(start_trainer, tmp_path, log_console="false", tui_mode="true")
    assert len(trainer.all(Step)) == 5


@pytest.mark.parametrize("mode", ["false", "true"])
def test_log_jsonl_off_writes_no_log(
    start_trainer: StartTrainer, tmp_path: Path, mode: str
) -> None:
    headless(start_trainer, tmp_path, log_jsonl="false", tui_mode=mode)
    assert not list((tmp_path / "run").glob("*.jsonl"))


def test_recording_can_be_off(start_trainer: StartTrainer, tmp_path: Path) -> None:
    words = training_words(tmp_path, tiny_model(), max_steps=2, tui_mode="true")
    trainer = start_trainer([*words, "output_store.enabled=false"])
    assert trainer.wait() == 0
    assert not trainer.all(DatabasePath)
    assert len(trainer.all(Generation)) == 16
    assert not list((tmp_path / "run").glob("*.db*"))


# --- both halves of the channel


@pytest.mark.parametrize(
    ("words", "environ", "on"),
    [
        (["tui_mode=true"], {}, True),
        ([], {"GRPO_TUI_MODE": "1"}, True),
        ([], {"MLX_TUI_MODE": "1"}, True),
        (["tui_mode=false"], {"GRPO_TUI_MODE": "1"}, False),
        ([], {}, False),
    ],
    ids=["option", "variable", "alias", "option against variable", "neither"],
)
def test_W25_events_and_commands_are_on_or_off_together(
    start_trainer: StartTrainer,
    tmp_path: Path,
    words: list[str],
    environ: dict[str, str],
    on: bool,
) -> None:
    """STOP ends a run early whose output are events, and is not read by one without."""
    settings = training_words(tmp_path, tiny_model(), max_steps=100_000 if on else 3)
    trainer = start_trainer([*settings, *words], environ)
    trainer.send("STOP")
    assert trainer.wait() == 0, str(trainer)
    if on:
        assert trainer.all(Complete)[0].status == "stopped"
    else:
        assert "completed: 3 steps" in trainer.stdout
        assert '{"' not in trainer.stdout


# --- when nobody listens


def test_R23_a_closed_pipe_does_not_end_a_headless_run(
    start_trainer: StartTrainer, tmp_path: Path
) -> None:
    trainer = start_trainer(training_words(tmp_path, tiny_model(), max_steps=5))
    trainer.close_stdout()
    trainer.close_stdin()
    assert trainer.wait() == 0, trainer.stderr
    assert trainer.stderr == ""
    assert steps_logged(tmp_path / "run") == [1, 2, 3, 4, 5]


@pytest.mark.fresh
def test_R25_a_process_without_any_stream_trains(tmp_path: Path) -> None:
    words = training_words(tmp_path, tiny_model(), max_steps=2)
    command = [sys.executable, "-P", "-m", "grpo_trainer", *words, "--events"]
    script = 'exec "$@" <&- >&- 2>&-'
    process = subprocess.run(
        ["sh", "-c", script, "sh", *command], cwd=tmp_path, timeout=SECONDS, check=False
    )
    assert process.returncode == 0
    assert steps_logged(tmp_path / "run") == [1, 2]
