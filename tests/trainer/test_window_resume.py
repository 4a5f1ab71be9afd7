"""A run that ends between two steps of the same rollouts goes on as if it had not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import Checkpoint, Generation, Step
from grpo_trainer.checkpoint import MANIFEST_NAME
from grpo_trainer.errors import CheckpointError
from grpo_trainer.rollout_batch_file import ROLLOUTS_NAME
from library_runs import Library, letters
from run_results import files_of, logged_steps, rows_of
from sent_commands import send_after_steps
from tiny_model import tiny_model
from trainers import StartTrainer, training_words

STEPS = 10
"""Six prompts in windows of four and two steps, each made twice: 1-8, 9-12."""
WINDOW: dict[str, Any] = {"batch_size": 1, "steps_per_generation": 4, "num_iterations": 2}


def begins_with_a_letter(completions: list[str], **_: Any) -> list[float]:
    """Often the same for a whole group."""
    return [float(text[:1].isalpha()) for text in completions]


VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {},
    "full": {"fine_tune_type": "full", "learning_rate": 1e-3},
    "adaptive entropy": {
        "adaptive_entropy": True,
        "entropy_coef": 0.01,
        "entropy_target": 9.0,
        "gradient_accumulation_steps": 2,
        "num_iterations": 4,
    },
    "moving reference": {"kl_coef": 0.1, "ref_sync_interval": 3},
    "moving reference, full": {
        "kl_coef": 0.1,
        "ref_sync_interval": 3,
        "fine_tune_type": "full",
        "learning_rate": 1e-3,
    },
    "dynamic sampling": {
        "dynamic_sampling": True,
        "dynamic_sampling_attempts": 2,
        "judge": begins_with_a_letter,
    },
}


def library(folder: Path, judge: Any = letters, **settings: Any) -> Library:
    values = {"max_steps": STEPS, "learning_rate": 1e-2, "save_interval": 1, "max_checkpoints": 0}
    return Library(folder, judge, **{**WINDOW, **values, **settings})


def stop_after(step: int, folder: Path, **settings: Any) -> Library:
    run = library(folder, save_interval=0, **settings)
    with pytest.MonkeyPatch.context() as monkeypatch:
        send_after_steps(run, monkeypatch, {step: ["STOP"]})
        assert run.train().status == "stopped"
    assert [event.step for event in run.all(Step)][-1] == step
    return run


def resumed(folder: Path, wanted: str = "latest", **settings: Any) -> Library:
    path = wanted if wanted == "latest" else str(folder / "run" / wanted)
    return library(folder, resume_from_checkpoint=path, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that is left alone, made once for each variant."""
    made: dict[str, Library] = {}

    def run(variant: str) -> Library:
        if variant not in made:
            made[variant] = library(tmp_path_factory.mktemp("whole"), **VARIANTS[variant])
            made[variant].train()
        return made[variant]

    return run


def expect_same(found: Library, expected: Library) -> None:
    assert files_of(expected.folder / "final")
    assert files_of(found.folder / "final") == files_of(expected.folder / "final")
    assert rows_of(found.folder) == rows_of(expected.folder)
    assert logged_steps(found.folder) == logged_steps(expected.folder)


# --- equal


@pytest.mark.parametrize("step", [1, 3, 4, 8])
def test_R15_R17_stopped_after_any_step_of_a_window_it_ends_as_if_left_alone(
    whole: Any, tmp_path: Path, step: int
) -> None:
    stop_after(step, tmp_path)
    run = resumed(tmp_path)
    run.train()
    assert [event.step for event in run.all(Step)] == list(range(step + 1, STEPS + 1))
    expect_same(run, whole("lora"))


@pytest.mark.parametrize(
    ("variant", "step"),
    [
        ("full", 5),
        ("adaptive entropy", 2),
        ("moving reference", 5),
        ("moving reference, full", 2),
        ("dynamic sampling", 2),
    ],
)
def test_R15_what_the_objective_remembers_goes_on_too(
    whole: Any, tmp_path: Path, variant: str, step: int
) -> None:
    expected = whole(variant)
    stop_after(step, tmp_path, **VARIANTS[variant])
    run = resumed(tmp_path, **VARIANTS[variant])
    run.train()
    expect_same(run, expected)
    told = {event.step: event.metrics for event in expected.all(Step)}
    for event in run.all(Step):
        for name in ("kl", "entropy_coef", "ratio/mean", "rollout/age", "num_tokens"):
            assert event.metrics.get(name) == told[event.step].get(name)


def test_the_variants_differ_in_what_they_are_about(whole: Any) -> None:
    bonus = {event.metrics.get("entropy_coef") for event in whole("adaptive entropy").all(Step)}
    assert len(bonus) > 3
    for variant in ("moving reference", "moving reference, full"):
        assert any(event.metrics.get("kl", 0) > 0 for event in whole(variant).all(Step))
        assert (whole(variant).folder / "final" / "reference.safetensors").is_file()
    told = whole("dynamic sampling").all(Step)
    assert any(event.metrics.get("dynamic_sampling/discarded_groups") for event in told)


@pytest.mark.parametrize(
    ("saved", "variant"), [(1, "lora"), (3, "moving reference, full"), (6, "adaptive entropy")]
)
def test_R17_killed_in_the_middle_of_a_window_and_resumed_equals_left_alone(
    start_trainer: StartTrainer, tmp_path: Path, saved: int, variant: str
) -> None:
    """Steps after the checkpoint are in the record already, and are made again."""
    settings: dict[str, Any] = {"max_steps": 2 * STEPS, "learning_rate": 1e-2}
    values = {**WINDOW, **settings, "save_interval": saved, **VARIANTS[variant]}
    words = [*training_words(tmp_path, tiny_model(), **values), "--events"]
    other = [*training_words(tmp_path, tiny_model(), **values, output_dir=tmp_path / "other")]
    alone = start_trainer([*other, "--events"])
    killed = start_trainer(words)
    killed.wait_for(Checkpoint)
    killed.wait_for(Step, lambda event: event.step == saved + 1)
    killed.kill()
    killed.wait()
    again = start_trainer([*words, "--resume"])
    assert again.wait() == 0, str(again)
    assert [event.step for event in again.all(Step)][-1] == 2 * STEPS
    assert alone.wait() == 0, str(alone)
    assert files_of(tmp_path / "run" / "final") == files_of(tmp_path / "other" / "final")
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "other")


def test_a_run_that_ended_in_the_middle_of_a_window_can_be_made_longer(
    whole: Any, tmp_path: Path
) -> None:
    library(tmp_path, max_steps=6).train()
    assert (tmp_path / "run" / "final" / ROLLOUTS_NAME).is_file()
    resumed(tmp_path, max_steps=6).train()
    run = resumed(tmp_path)
    run.train()
    assert [event.step for event in run.all(Step)] == [7, 8, 9, 10]
    expect_same(run, whole("lora"))


def test_rollouts_are_trained_at_their_own_temperature_after_a_resume_too(tmp_path: Path) -> None:
    """With steps too small to move anything the ratio tells of nothing but the temperature."""
    small: dict[str, Any] = {"learning_rate": 1e-12}
    run = library(tmp_path, save_interval=0, **small)
    with pytest.MonkeyPatch.context() as monkeypatch:
        commands = {2: ["SET temperature=0.2"], 3: ["STOP"]}
        send_after_steps(run, monkeypatch, commands)
        run.train()
    again = resumed(tmp_path, **small)
    again.train()
    steps = {event.step: event.metrics for event in again.all(Step)}
    assert [step["ratio/mean"] for step in steps.values()] == pytest.approx([1] * 7, abs=1e-4)
    assert steps[9]["entropy"] < 0.8 * steps[8]["entropy"]


# --- what a checkpoint holds


def test_a_checkpoint_holds_the_rollouts_that_steps_to_come_train_on_and_no_others(
    whole: Any,
) -> None:
    folder = whole("lora").folder
    for step in range(1, STEPS):
        path = folder / f"checkpoint-{step}"
        listed = json.loads((path / MANIFEST_NAME).read_text())
        assert (path / ROLLOUTS_NAME).is_file() == (step != 8)
        assert (ROLLOUTS_NAME in listed) == (step != 8)


def test_rollouts_are_told_once_whoever_trains_on_them(whole: Any, tmp_path: Path) -> None:
    first = stop_after(2, tmp_path)
    second = resumed(tmp_path)
    second.train()
    told = [(e.step, e.token_ids) for e in (*first.all(Generation), *second.all(Generation))]
    assert told == [(e.step, e.token_ids) for e in whole("lora").all(Generation)]


# --- what is refused


def all_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_iterations": 1}, "num_iterations 2 → 1"),
        ({"num_iterations": 3}, "num_iterations 2 → 3"),
        ({"steps_per_generation": 2}, "steps_per_generation 4 → 2"),
        ({"steps_per_generation": None}, "steps_per_generation 4 → None"),
        ({"batch_size": 2}, "batch_size 1 → 2"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps 1 → 2"),
        ({"seed": 7}, "seed 0 → 7"),
        ({"shuffle": False}, "shuffle True → False"),
    ],
    ids=str,
)
def test_M30_other_windows_are_refused_in_the_middle_of_one(
    whole: Any, change: dict[str, Any], named: str
) -> None:
    folder = whole("lora").folder
    before = all_files(folder)
    for step in (1, 4, 6):
        again = resumed(folder.parent, f"checkpoint-{step}", **change)
        with pytest.raises(
            CheckpointError, match=f"{named}.*resume with the settings of"
        ) as caught:
            again.train()
        assert "\n" not in str(caught.value)
    assert all_files(folder) == before


def test_M30_a_checkpoint_without_rollouts_is_refused_where_the_settings_need_them(
    tmp_path: Path,
) -> None:
    library(tmp_path, num_iterations=1, steps_per_generation=None, max_steps=3).train()
    with pytest.raises(CheckpointError, match=r"num_iterations 1 → 2: step 4 would train on other"):
        resumed(tmp_path, steps_per_generation=None).train()


def test_windows_may_change_where_one_ends(tmp_path: Path) -> None:
    library(tmp_path, num_iterations=1, max_steps=4).train()
    run = resumed(tmp_path, num_iterations=1, steps_per_generation=1, max_steps=6)
    run.train()
    assert [event.step for event in run.all(Step)] == [5, 6]
    (warning,) = [text for text in run.logs("warn") if "not as before" in text]
    assert "steps_per_generation 4 → 1" in warning


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [damage, cut, Path.unlink])
def test_R11_damaged_rollouts_are_refused_and_never_the_latest(
    whole: Any, tmp_path: Path, spoil: Any
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole("lora").folder, folder)
    shutil.rmtree(folder / "final")
    spoil(folder / "checkpoint-9" / ROLLOUTS_NAME)
    run = resumed(tmp_path, "checkpoint-9")
    with pytest.raises(CheckpointError, match=r"rollouts\.json is missing or altered") as caught:
        run.train()
    assert "\n" not in str(caught.value)
    again = resumed(tmp_path)
    again.train()
    assert [event.step for event in again.all(Step)] == [9, 10]
    expect_same(again, whole("lora"))


def test_a_KL_term_cannot_begin_with_rollouts_that_know_no_reference(whole: Any) -> None:
    run = resumed(whole("lora").folder.parent, "checkpoint-2", kl_coef=0.1)
    with pytest.raises(CheckpointError, match=r"kl_coef=0\.1: the rollouts that step 3 ") as caught:
        run.train()
    assert "\n" not in str(caught.value)
