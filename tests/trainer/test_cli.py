"""The command: what it needs, what it leaves behind, and what its exit codes say."""

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import Failed
from grpo_trainer import cli
from grpo_trainer.trainer import TrainResult
from python_process import run_python
from tiny_model import make_model
from trainers import StartTrainer, training_words


def test_a_model_that_cannot_be_loaded_is_refused(
    start_trainer: StartTrainer, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "damaged")
    (model / "model.safetensors").write_bytes(b"no tensors")
    trainer = start_trainer(training_words(tmp_path, model))
    assert trainer.wait() == 2
    assert len(trainer.stderr.splitlines()) == 1
    assert "damaged': cannot be loaded" in trainer.stderr
    assert "Traceback" not in trainer.stdout + trainer.stderr


def test_a_traceback_is_shown_with_debug_only(
    start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path
) -> None:
    words = training_words(tmp_path, qwen3_folder, reward=tmp_path / "no.py")
    assert "Traceback" not in (plain := start_trainer(words)).stderr
    assert plain.wait() == 2
    debug = start_trainer([*words, "--debug"])
    assert debug.wait() == 2
    assert "Traceback" in debug.stderr


def test_R27_a_reward_that_fails_ends_the_run_with_1(
    start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path
) -> None:
    (tmp_path / "reward.py").write_text(
        "def letters(completions, **_):\n    raise ValueError('no')\n"
    )
    trainer = start_trainer([*training_words(tmp_path, qwen3_folder), "--events"])
    assert trainer.wait() == 1
    last = trainer.events()[-1]
    assert isinstance(last, Failed)
    assert last.exit_code == 1
    assert "letters" in last.error
    assert "no" in last.error
    with sqlite3.connect(tmp_path / "run" / "outputs.db") as db:
        assert db.execute("SELECT status FROM training_runs").fetchall() == [("crashed",)]


# --- without mlx


@pytest.fixture
def without_mlx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which mlx is installed without a back end."""
    stub = tmp_path / "stub"
    (stub / "mlx").mkdir(parents=True)
    (stub / "mlx" / "__init__.py").write_text("")
    (stub / "mlx" / "core.py").write_text("raise ImportError('libmlx.so: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(stub))
    return stub


@pytest.mark.fresh
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_E07_help_and_version_work_without_mlx(
    start_trainer: StartTrainer, without_mlx: Path, option: str
) -> None:
    trainer = start_trainer([option], fresh=True)
    assert trainer.wait() == 0, str(trainer)
    assert "grpo-trainer" in trainer.stdout
    assert trainer.stderr == ""


@pytest.mark.fresh
@pytest.mark.skipif(sys.platform == "darwin", reason="there mlx always has a back end")
def test_E07_training_without_mlx_prints_what_to_install(
    start_trainer: StartTrainer, tmp_path: Path, without_mlx: Path, qwen3_folder: Path
) -> None:
    trainer = start_trainer(training_words(tmp_path, qwen3_folder), fresh=True)
    assert trainer.wait() == 1, str(trainer)
    assert len(trainer.stderr.splitlines()) == 1
    assert "pip install 'grpo-tui[cpu]'" in trainer.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.fresh
def test_E07_an_old_database_is_read_without_mlx(tmp_path: Path, without_mlx: Path) -> None:
    code = """
import sqlite3, sys
from grpo_protocol.database import migrate, schema_version
db = sqlite3.connect(sys.argv[1], isolation_level=None)
migrate(db)
print(schema_version(db) > 0, "mlx.core" in sys.modules)
"""
    result = run_python(code, str(tmp_path / "outputs.db"))
    assert result.stdout.split() == [b"True", b"False"], result.stderr


# --- a fresh start


@pytest.mark.fresh
def test_a_fresh_process_trains_headless_and_computes_what_a_fork_computes(
    start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path
) -> None:
    words = training_words(tmp_path, qwen3_folder, max_steps=2)
    fork = start_trainer([*words, f"output_dir={tmp_path / 'fork'}"])
    trainer = start_trainer(words, fresh=True)
    assert trainer.wait() == 0, str(trainer)
    lines = trainer.stdout.splitlines()
    assert lines[0] == lines[-1] == f"run folder: {tmp_path / 'run'}"
    assert any(line.startswith("completed: 2 steps") for line in lines)
    assert trainer.stderr == ""
    assert fork.wait() == 0
    files = [tmp_path / name / "final" / "adapters.safetensors" for name in ("run", "fork")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_without_an_output_dir_the_run_gets_a_folder_of_its_own(
    start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path
) -> None:
    words = [
        word
        for word in training_words(tmp_path, qwen3_folder, max_steps=1, model_name="tiny")
        if not word.startswith("output_dir=")
    ]
    trainer = start_trainer(words)
    assert trainer.wait() == 0
    (folder,) = (tmp_path / "outputs").iterdir()
    assert folder.name.startswith("tiny-")
    assert trainer.stdout.splitlines()[0] == f"run folder: outputs/{folder.name}"
    assert (folder / "final" / "adapters.safetensors").exists()


def test_a_config_file_trains(
    start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path
) -> None:
    training_words(tmp_path, qwen3_folder)
    file = tmp_path / "run.toml"
    file.write_text(
        f"model = {json.dumps(str(qwen3_folder))}\n"
        'data = "data.jsonl"\nreward = ["reward.py"]\noutput_dir = "here"\n'
        "max_completion_length = 4\nmax_steps = 1\nlearning_rate = 1e-6\n"
    )
    trainer = start_trainer(["train", str(file), "group_size=2"])
    assert trainer.wait() == 0, str(trainer)
    assert os.path.exists(tmp_path / "here" / "final" / "manifest.json")


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("stopped", 143)])
def test_a_signal_that_stopped_nothing_is_no_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Any, code: int
) -> None:
    result = TrainResult(status, 3, tmp_path, [], signal.SIGTERM)
    monkeypatch.setattr(cli, "_run", lambda arguments, session: result)
    assert cli.main(["train", f"output_dir={tmp_path / 'run'}", "log_console=false"]) == code
