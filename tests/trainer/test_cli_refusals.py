"""Bad input is refused in one line, with exit code 2, before the model loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import Failed, Status
from tiny_model import make_model
from trainers import StartTrainer, training_words

Damage = Callable[[Path], dict[str, Any] | list[str]]


def missing_model(folder: Path) -> dict[str, Any]:
    return {"model": folder / "no-model"}


def no_model(folder: Path) -> list[str]:
    return [w for w in training_words(folder, folder) if not w.startswith("model=")]


def model_without_weights(folder: Path) -> dict[str, Any]:
    model = make_model(folder / "bare")
    (model / "model.safetensors").unlink()
    return {"model": model}


def model_that_is_a_file(folder: Path) -> dict[str, Any]:
    (folder / "weights").write_text("")
    return {"model": folder / "weights"}


def missing_dataset(folder: Path) -> dict[str, Any]:
    return {"data": folder / "no.jsonl"}


def unreadable_dataset(folder: Path) -> dict[str, Any]:
    (folder / "bad.jsonl").write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    return {"data": folder / "bad.jsonl"}


def no_dataset(folder: Path) -> list[str]:
    return [w for w in training_words(folder, folder) if not w.startswith("data=")]


def no_reward(folder: Path) -> dict[str, Any]:
    return {"reward": ""}


def missing_reward(folder: Path) -> dict[str, Any]:
    return {"reward": folder / "no.py"}


def broken_reward(folder: Path) -> dict[str, Any]:
    (folder / "broken.py").write_text("def letters(:\n")
    return {"reward": folder / "broken.py"}


def misspelt_reward(folder: Path) -> dict[str, Any]:
    return {"reward": f"{folder / 'reward.py'}:lettres"}


def group_of_one(folder: Path) -> dict[str, Any]:
    return {"group_size": 1}


def unknown_metric(folder: Path) -> dict[str, Any]:
    return {"dynamic_sampling": "true", "dynamic_sampling_metric": "lettres"}


def metric_without_a_use(folder: Path) -> dict[str, Any]:
    return {"dynamic_sampling_metric": "letters"}


def unknown_key(folder: Path) -> dict[str, Any]:
    return {"grop_size": 4}


def unknown_option(folder: Path) -> list[str]:
    return [*training_words(folder, folder), "--grop-size=4"]


def missing_config(folder: Path) -> list[str]:
    return ["train", str(folder / "no.toml")]


def broken_config(folder: Path) -> list[str]:
    (folder / "bad.toml").write_text("seed =")
    return ["train", str(folder / "bad.toml")]


def number_as_text(folder: Path) -> list[str]:
    (folder / "text.toml").write_text('learning_rate = "1e-6"')
    return ["train", str(folder / "text.toml")]


def occupied_folder(folder: Path) -> dict[str, Any]:
    (folder / "run" / "checkpoint-3").mkdir(parents=True)
    return {}


def resume_from_nothing(folder: Path) -> dict[str, Any]:
    return {"resume_from_checkpoint": folder / "run" / "checkpoint-7"}


def resume_without_a_folder(folder: Path) -> list[str]:
    words = training_words(folder, folder, resume_from_checkpoint="latest")
    return [w for w in words if not w.startswith("output_dir=")]


REFUSALS: list[tuple[Damage, list[str]]] = [
    (missing_model, ["model='", "no-model'", "no such folder; check the path"]),
    (no_model, ["model=None", "--model"]),
    (model_without_weights, ["model='", "bare'", "no model*.safetensors weights"]),
    (model_that_is_a_file, ["model='", "is a file"]),
    (missing_dataset, ["no.jsonl"]),
    (unreadable_dataset, ["bad.jsonl", "line 2", "promt", "prompt"]),
    (no_dataset, ["data=None", "--data"]),
    (no_reward, ["reward", "--reward"]),
    (missing_reward, ["no.py"]),
    (broken_reward, ["broken.py"]),
    (misspelt_reward, ["lettres", "letters"]),
    (group_of_one, ["group_size=1", ">= 2"]),
    (unknown_metric, ["dynamic_sampling_metric='lettres'", "letters, or reward"]),
    (metric_without_a_use, ["dynamic_sampling_metric='letters'", "dynamic_sampling=true"]),
    (unknown_key, ["grop_size='4'", "did you mean group_size?"]),
    (unknown_option, ["--grop-size"]),
    (missing_config, ["no.toml", "No such file"]),
    (broken_config, ["bad.toml", "not valid TOML"]),
    (number_as_text, ["learning_rate='1e-6'", "a number"]),
    (occupied_folder, ["output_dir=", "checkpoint-3", "--resume", "--output-dir"]),
    (resume_without_a_folder, ["latest", "--output-dir"]),
]


def words_for(damage: Damage, folder: Path, model: Path) -> list[str]:
    training_words(folder, model)  # makes the files that a damage may leave out
    outcome = damage(folder)
    if isinstance(outcome, dict):
        return training_words(folder, model, **outcome)
    return [word.replace(f"model={folder}", f"model={model}") for word in outcome]


@pytest.mark.parametrize(
    ("damage", "parts"), REFUSALS, ids=lambda value: getattr(value, "__name__", "")
)
def test_bad_input_is_refused_before_the_model_loads(
    start_trainer: StartTrainer,
    tmp_path: Path,
    qwen3_folder: Path,
    damage: Damage,
    parts: list[str],
) -> None:
    trainer = start_trainer(words_for(damage, tmp_path, qwen3_folder))
    assert trainer.wait() == 2, str(trainer)
    lines = trainer.stderr.splitlines()
    assert len(lines) == 1, lines
    assert all(part in lines[0] for part in parts), lines[0]
    assert "loading" not in trainer.stdout
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("damage", "parts"), REFUSALS, ids=lambda value: getattr(value, "__name__", "")
)
def test_bad_input_is_told_to_the_dashboard_as_well(
    start_trainer: StartTrainer,
    tmp_path: Path,
    qwen3_folder: Path,
    damage: Damage,
    parts: list[str],
) -> None:
    words = [*words_for(damage, tmp_path, qwen3_folder), "--events"]
    trainer = start_trainer(words)
    assert trainer.wait() == 2, str(trainer)
    *others, last = trainer.events()
    assert isinstance(last, Failed)
    assert last.exit_code == 2
    assert all(part in last.error for part in parts), last.error
    assert not any(isinstance(event, Status) for event in others)
    assert len(trainer.stderr.splitlines()) <= 1


def test_a_missing_checkpoint_is_refused(
    start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path
) -> None:
    trainer = start_trainer(words_for(resume_from_nothing, tmp_path, qwen3_folder))
    assert trainer.wait() == 2
    assert "checkpoint-7" in trainer.stderr
    assert len(trainer.stderr.splitlines()) == 1
    assert not (tmp_path / "run" / "outputs.db").exists()
