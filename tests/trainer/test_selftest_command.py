"""The command `selftest`: what it needs, what its exit codes say, and that it leaves nothing."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_trainer.arguments import parse_arguments
from grpo_trainer.output.live_stream import LiveStream
from grpo_trainer.selftest.finding import Finding, Table
from grpo_trainer.tensor_file import read_tensors, write_tensors
from selftests import GRADIENT, Report
from tiny_model import make_model, tiny_quantized
from trainers import StartTrainer


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.fresh
def test_the_bundled_model_passes_without_any_word_and_nothing_is_written(
    start_trainer: StartTrainer, tmp_path: Path
) -> None:
    trainer = start_trainer(["selftest"], fresh=True)
    assert trainer.wait() == 0, str(trainer)
    assert trainer.stdout.splitlines()[1].startswith("selftest of demo: qwen3, lora, float32,")
    assert Report(0, trainer.stdout).failed == set()
    assert trainer.stderr == ""
    assert contents(tmp_path) == []


def test_a_model_with_a_dead_layer_fails_and_nothing_is_written(
    start_trainer: StartTrainer, tmp_path: Path
) -> None:
    """Attention that is multiplied by 0 has no gradient until its output's adapter has learned."""
    weights = make_model(tmp_path / "dead") / "model.safetensors"
    tensors = read_tensors(weights)
    dead = "model.layers.1.self_attn.o_proj.weight"
    write_tensors(weights, {**tensors, dead: 0 * tensors[dead]})
    before = contents(tmp_path / "dead")
    words = ["--model", "dead", "output_dir=run", "data=no.jsonl", "reward=no.py", "--events"]
    trainer = start_trainer(["selftest", *words])
    assert trainer.wait() == 1, str(trainer)
    report = Report(1, trainer.stdout)
    assert report.failed == {GRADIENT}, report.text
    names = [f"model.layers.1.self_attn.{name}_proj.lora_b" for name in "qkv"]
    assert report.found[GRADIENT] == f"6 of 28 tensors have none: {', '.join(names)} and 3 more"
    assert contents(tmp_path) == ["dead"]
    assert contents(tmp_path / "dead") == before


REFUSALS: list[tuple[dict[str, Any], list[str]]] = [
    ({"model": "no-model"}, ["model='no-model'", "no such folder"]),
    ({"model": tiny_quantized, "fine_tune_type": "full"}, ["fine_tune_type=full", "is quantized"]),
    ({"resume_from_checkpoint": "latest"}, ["resume_from_checkpoint='latest'", "adapter_path"]),
    ({"optimizer_type": "sgd"}, ["optimizer_type='sgd'", "set learning_rate"]),
    ({"optimiser_type": "sgd"}, ["optimiser_type", "did you mean optimizer_type?"]),
    ({"adapter_path": "no-adapters"}, ["adapter_path='no-adapters'"]),
    ({"lora_keys": "self_attn.w_proj"}, ["lora_keys='self_attn.w_proj'", "no such module"]),
]


@pytest.mark.parametrize(("settings", "parts"), REFUSALS)
def test_bad_input_is_refused_in_one_line(
    start_trainer: StartTrainer, tmp_path: Path, settings: dict[str, Any], parts: list[str]
) -> None:
    words = [
        f"{key}={value() if isinstance(value, Callable) else value}"  # type: ignore[arg-type]
        for key, value in settings.items()
    ]
    trainer = start_trainer(["selftest", *words])
    assert trainer.wait() == 2, str(trainer)
    (line,) = trainer.stderr.splitlines()
    assert all(part in line for part in parts), line
    assert "checks" not in trainer.stdout
    assert contents(tmp_path) == []


def test_a_traceback_of_a_check_is_shown_with_debug_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, qwen3_folder: Path
) -> None:
    from grpo_trainer.cli import main
    from grpo_trainer.selftest import checks

    def crash(*_: Any) -> None:
        raise KeyError("no such layer")

    monkeypatch.setattr(checks, "decode_greedily", crash)
    for words, shown in (([], False), (["--debug"], True)):
        assert main(["selftest", "--model", str(qwen3_folder), *words]) == 1
        assert ("Traceback" in capsys.readouterr().err) is shown


def test_help_lists_the_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--help"], {"train": {}, "selftest": {}})
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.split()[:1] == ["selftest"])
    assert "writes nothing" in line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_wrapped_under_its_column_on_a_terminal_and_whole_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    finding = Finding("FAILED", "one two three four five six seven eight nine \x1b[2J ten eleven")
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        Table(LiveStream(stream), ["short", "a long name"]).line("short", finding)
    (line,) = plain.getvalue().splitlines()
    assert line.startswith("short        FAILED   one two")
    wrapped = terminal.getvalue().splitlines()
    assert len(wrapped) > 1
    assert max(map(len, wrapped)) <= 50
    assert {line[:22].strip() for line in wrapped[1:]} == {""}
    assert " ".join(terminal.getvalue().split()) == " ".join(line.split())
    assert "\x1b" not in plain.getvalue() + terminal.getvalue()
