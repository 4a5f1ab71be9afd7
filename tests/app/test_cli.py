"""The words of the command line, and what the shell gets back."""

import importlib.util
import io
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from grpo_tui import cli
from grpo_tui.errors import LaunchError
from grpo_tui.launch import RestartRule

TRAINER = (sys.executable, "-P", "-m", "grpo_trainer")


def grpo_tui(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "grpo_tui.cli", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def test_words_of_the_trainer_pass_unchanged() -> None:
    words = ["max_steps=8", "--output-dir", "out", "--resume", "latest", "--lora-layers", "-1"]
    plan = cli.plan_of(["demo", "--ascii", *words, "--no-mouse"])
    assert plan.mode == "live"
    assert plan.argv == (*TRAINER, "demo", *words)
    assert (plan.ascii, plan.mouse) == (True, False)


def test_value_that_looks_like_a_flag_of_ours_in_one_word_stays_with_its_option() -> None:
    plan = cli.plan_of(["train", "run.toml", "--run-name=--ascii"])
    assert plan.argv[-1] == "--run-name=--ascii"
    assert not plan.ascii


def test_trainer_of_ours_restarts_with_resume_unless_told_otherwise() -> None:
    assert cli.plan_of(["demo"]).restart == RestartRule(enabled=True, resume=True)
    assert cli.plan_of(["train", "--no-auto-restart"]).restart.enabled is False
    assert "--no-auto-restart" not in cli.plan_of(["train", "--no-auto-restart"]).argv


def test_other_programs_get_nothing_added_and_restart_only_when_asked() -> None:
    plan = cli.plan_of(["run", "--ascii", "--", sys.executable, "train.py", "--ascii", "--", "x"])
    assert plan.argv == (sys.executable, "train.py", "--ascii", "--", "x")
    assert plan.restart == RestartRule(enabled=False, resume=False)
    again = cli.plan_of(["run", "--auto-restart", "--", sys.executable])
    assert again.restart == RestartRule(enabled=True, resume=False)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["train", "--model", "models/qwen-tiny"], "qwen-tiny"),
        (["train", "model=org/qwen"], "qwen"),
        (["train", "gsm.toml"], "gsm"),
        (["train"], "train"),
        (["demo"], "demo"),
    ],
)
def test_name_shown_until_the_trainer_has_told_its_model(words: list[str], name: str) -> None:
    assert cli.plan_of(words).name == name


def test_open_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cli.plan_of(["open", str(tmp_path)])
    assert (plan.mode, plan.path) == ("open", tmp_path)
    monkeypatch.chdir(tmp_path)
    plan = cli.plan_of([])
    assert (plan.mode, plan.path) == ("runs", tmp_path)
    assert cli.plan_of(["--ascii"]).ascii


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["open", "/nowhere/at-all"], "/nowhere/at-all: no such file or folder"),
        (["run"], "grpo-tui run -- python train.py"),
        (["run", "--", "no-such-program-here"], "'no-such-program-here' was not found"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(words: list[str], told: str) -> None:
    with pytest.raises(LaunchError, match=told) as caught:
        cli.plan_of(words)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_open_refuses_what_cannot_be_a_record(tmp_path: Path) -> None:
    text, record = tmp_path / "notes.db", tmp_path / "outputs.db"
    text.write_text("no database at all")
    with pytest.raises(LaunchError, match=r"notes\.db: not an SQLite database") as caught:
        cli.plan_of(["open", str(text)])
    assert caught.value.exit_code == 2
    with closing(sqlite3.connect(record)) as connection:
        connection.execute("CREATE TABLE t (x)")
    assert cli.plan_of(["open", str(record)]).path == record


def test_line_that_the_terminal_cannot_encode_is_printed_all_the_same() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    cli._say("reward 0.1 → 0.9", stream)
    stream.seek(0)
    assert stream.read() == "reward 0.1 ? 0.9\n"


def test_missing_trainer_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(LaunchError, match=r"pip install 'grpo-tui\[cpu\]'") as caught:
        cli.plan_of(["demo"])
    assert caught.value.exit_code == 1


def test_mlx_without_its_back_end_counts_as_missing_on_linux(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Spec)
    monkeypatch.setattr(sys, "platform", "linux")
    assert cli.missing_trainer() is not None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmlx.so").touch()
    assert cli.missing_trainer() is None


def test_without_a_terminal_one_line_points_to_the_headless_command() -> None:
    done = grpo_tui("demo")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "grpo-trainer" in done.stderr


def test_unknown_command_is_bad_input() -> None:
    done = grpo_tui("demonstrate")
    assert done.returncode == 2
    assert "demonstrate" in done.stderr


def test_help_and_version_import_neither_textual_nor_the_trainer() -> None:
    for words, told in ((["--help"], "key=value"), (["--version"], "grpo-tui 0")):
        program = (
            "import sys\nfrom grpo_tui.cli import main\n"
            f"try: main({words!r})\nexcept SystemExit as end: assert not end.code\n"
            "loaded = {name.partition('.')[0] for name in sys.modules}\n"
            "assert not loaded & {'textual', 'rich', 'mlx', 'mlx_lm', 'grpo_trainer'}, loaded\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert told in done.stdout


def test_help_of_a_command_is_ours_wherever_it_stands() -> None:
    done = grpo_tui("train", "max_steps=8", "--help")
    assert done.returncode == 0
    assert "--no-auto-restart" in done.stdout
