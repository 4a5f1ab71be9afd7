"""What a resumed run takes over from the earlier one, and what it says about it."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.config import GRPOConfig, OutputStoreConfig
from grpo_protocol.messages import Eval, Init, ResumeState, Step
from grpo_trainer import checkpoint, evaluation
from grpo_trainer.checkpoint import find_latest, read_state
from grpo_trainer.control import Control
from grpo_trainer.rollout import Interrupted, decode_greedily
from grpo_trainer.run_conditions import conditions_of, differences
from grpo_trainer.tensor_file import read_tensors
from learners import are_identical, copy_of
from library_runs import ROWS, Library
from sent_commands import send_after_steps
from tiny_model import tiny_model


def resumed(folder: Path, checkpoint_name: str = "", **settings: Any) -> Library:
    wanted = str(folder / "run" / checkpoint_name) if checkpoint_name else "latest"
    return Library(folder, resume_from_checkpoint=wanted, **settings)


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "run" / "outputs.db") as db:
        return db.execute(sql).fetchall()


# --- position and past


@pytest.mark.parametrize(("step", "position"), [(2, (1, 2)), (3, (1, 3)), (4, (2, 1))])
def test_the_position_is_that_of_the_last_step(
    tmp_path: Path, step: int, position: tuple[int, int]
) -> None:
    """Three steps make an epoch."""
    Library(tmp_path, max_steps=step).train()
    again = resumed(tmp_path, max_steps=6)
    again.train()
    (state,) = again.all(ResumeState)
    assert (state.epoch, state.step_in_epoch) == position
    assert (state.total_epochs, state.total_steps_in_epoch) == (2, 3)


def test_the_past_is_told_from_the_record(tmp_path: Path) -> None:
    first = Library(tmp_path, max_steps=62, group_size=2, batch_size=1, max_completion_length=2)
    first.train()
    again = resumed(tmp_path, max_steps=63, group_size=2, batch_size=1, max_completion_length=2)
    again.train()
    (state,) = again.all(ResumeState)
    steps = first.all(Step)
    assert [item.step for item in state.metrics_history] == list(range(3, 63))
    assert [item.mean_reward for item in state.metrics_history] == [
        step.mean_reward for step in steps[2:]
    ]
    rewards = [step.mean_reward for step in steps]
    totals = state.aggregates
    assert (totals.best_reward, totals.reward_count) == (max(rewards), 62)
    assert totals.avg_reward == pytest.approx(sum(rewards) / 62)
    assert totals.total_tokens == sum(step.total_tokens for step in steps)


def test_without_a_record_nothing_is_told_of_the_past(tmp_path: Path) -> None:
    off: dict[str, Any] = {"output_store": OutputStoreConfig(enabled=False)}
    Library(tmp_path, **off).train()
    again = resumed(tmp_path, max_steps=4, **off)
    again.train()
    (state,) = again.all(ResumeState)
    assert state.metrics_history == []
    assert state.aggregates.reward_count == 0


# --- evaluations


def test_an_evaluation_is_recorded_before_the_checkpoint_of_its_step(tmp_path: Path) -> None:
    library = Library(tmp_path, max_steps=3, save_interval=2, eval_interval=2)
    library.train(held_out=ROWS[:2])
    assert read_state(library.folder / "checkpoint-2").evaluated_step == 2
    again = resumed(tmp_path, "checkpoint-2", eval_interval=2)
    again.train(held_out=ROWS[:2])
    assert [event.step for event in again.all(Eval)] == [3]
    assert query(tmp_path, "SELECT step FROM evaluations ORDER BY step") == [(0,), (2,), (3,)]


def test_an_evaluation_that_was_stopped_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def stopped_the_second_time(*args: Any, **options: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 2:
            raise Interrupted
        return decode_greedily(*args, **options)

    library = Library(tmp_path, save_interval=0, eval_interval=2)
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "decode_greedily", stopped_the_second_time)
        assert library.train(held_out=ROWS[:2]).status == "stopped"
    assert [event.step for event in library.all(Eval)] == [0]
    again = resumed(tmp_path, eval_interval=2)
    again.train(held_out=ROWS[:2])
    assert [event.step for event in again.all(Eval)] == [2, 3]


# --- an older checkpoint


def test_steps_of_another_past_are_not_resumed_again(tmp_path: Path) -> None:
    Library(tmp_path, max_steps=5, save_interval=1, max_checkpoints=0).train()
    again = resumed(tmp_path, "checkpoint-2", max_steps=3, save_interval=0)
    again.train()
    folders = {path.name for path in again.folder.glob("*/")}
    assert folders == {
        "checkpoint-1",
        "checkpoint-2",
        "superseded-checkpoint-3",
        "superseded-checkpoint-4",
        "superseded-final",
        "final",
    }
    assert find_latest(again.folder) == again.folder / "final"
    assert read_state(again.folder / "final").step == 3
    (line,) = [text for text in again.logs("info") if "superseded" in text]
    assert "checkpoints after step 2" in line
    once_more = resumed(tmp_path, "checkpoint-1", max_steps=2)
    once_more.train()
    assert (once_more.folder / "superseded-final-2").is_dir()


# --- live settings


def test_settings_that_were_changed_hold_after_the_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, max_steps=4)
    commands = {1: ["SET learning_rate=0.25", "SET log_interval=2"], 2: ["STOP"]}
    send_after_steps(library, monkeypatch, commands)
    assert library.train().status == "stopped"
    state = json.loads((library.folder / "checkpoint-2" / checkpoint.STATE_NAME).read_text())
    assert state["liveSettings"]["learning_rate"] == {"start": 1e-5, "value": 0.25}
    again = resumed(tmp_path, max_steps=4, log_interval=3)
    again.train()
    assert [step.learning_rate for step in again.all(Step)] == [0.25, 0.25]
    (init,) = again.all(Init)
    assert (init.config.learning_rate, init.config.log_interval) == (0.25, 3)
    (line,) = [text for text in again.logs("info") if "hold again" in text]
    assert "learning_rate=0.25" in line
    assert "log_interval" not in line
    assert query(tmp_path, "SELECT step, key, value FROM setting_changes WHERE step = 3") == [
        (3, "learning_rate", "0.25")
    ]


def test_a_setting_that_was_changed_after_the_last_save_is_saved_by_STOP(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, max_steps=4, save_interval=2)
    controls: list[Control] = []
    begin = Control.begin

    def change_at_3(self: Control, step: int) -> bool:
        if step == 3 and not controls:
            controls.append(self)
            self.receive(b"SET temperature=0.5")
            self.receive(b"STOP")
        return begin(self, step)

    monkeypatch.setattr(Control, "begin", change_at_3)
    assert library.train().status == "stopped"
    saved = read_state(library.folder / "checkpoint-2").live_settings
    assert saved["temperature"].value == 0.5


# --- what a run depends on


def test_init_and_the_record_name_what_the_command_left_open(tmp_path: Path) -> None:
    library = Library(tmp_path)
    library.train()
    (init,) = library.all(Init)
    assert (init.config.output_dir, init.config.run_name) == (str(library.folder), "run")
    assert init.config.learning_rate == 1e-5
    ((recorded,),) = query(tmp_path, "SELECT config FROM training_runs")
    assert json.loads(recorded)["learning_rate"] == 1e-5
    assert json.loads(recorded)["output_dir"] == str(library.folder)


def test_one_warning_names_what_is_not_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path)
    library.train()
    conditions = read_state(library.folder / "final").conditions
    assert conditions is not None
    assert set(conditions.versions) == {"grpo-tui", "mlx", "mlx-lm"}
    same = resumed(tmp_path)
    same.train()
    assert not [text for text in same.logs("warn") if "not as before" in text]
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "77")
    other = resumed(tmp_path, max_steps=4, batch_size=1)
    other.train()
    (warning,) = [text for text in other.logs("warn") if "not as before" in text]
    assert "→ 77" in warning
    assert "batch_size 2 → 1" in warning
    assert "seed" not in warning


def test_the_conditions_name_the_settings_in_force() -> None:
    assert conditions_of(GRPOConfig(seed=7)).settings["seed"] == 7


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"loss_type": "dapo"}, "loss_type grpo → dapo"),
        ({"kl_coef": 0.5}, "kl_coef 0.0 → 0.5"),
        ({"top_p": 0.5}, "top_p 1.0 → 0.5"),
        ({"weight_decay": 0.5}, "weight_decay 0.01 → 0.5"),
        ({"gradient_clip_norm": None}, "gradient_clip_norm 1.0 → None"),
    ],
    ids=str,
)
def test_R19_every_setting_that_changes_what_a_step_does_is_shown(
    setting: dict[str, Any], told: str
) -> None:
    assert differences(conditions_of(GRPOConfig()), conditions_of(GRPOConfig(**setting))) == [told]


@pytest.mark.parametrize(
    "setting",
    [{"max_steps": 9}, {"num_epochs": 2}, {"save_interval": 3}, {"output_dir": "o"}, {"data": "d"}],
    ids=str,
)
def test_what_steps_do_not_depend_on_is_not_shown(setting: dict[str, Any]) -> None:
    assert not differences(conditions_of(GRPOConfig()), conditions_of(GRPOConfig(**setting)))


# --- what is trained


def test_E05_a_resumed_run_trains_the_adapters_and_nothing_else(tmp_path: Path) -> None:
    first = Library(tmp_path, max_steps=3, learning_rate=1e-2)
    first.train()
    adapters = read_tensors(first.folder / "final" / "adapters.safetensors")
    size = (first.folder / "final" / "adapters.safetensors").stat().st_size
    again = resumed(tmp_path, max_steps=6, learning_rate=1e-2)
    again.train()
    assert (again.folder / "final" / "adapters.safetensors").stat().st_size == size
    after = read_tensors(again.folder / "final" / "adapters.safetensors")
    assert after.keys() == adapters.keys()
    assert not are_identical(after, adapters)
    policy = again.trainer.policy
    assert policy.num_trainable == first.trainer.policy.num_trainable
    parameters = copy_of(policy.model.parameters())
    frozen = {
        name.replace(".linear.", "."): array
        for name, array in parameters.items()
        if name not in after
    }
    assert are_identical(frozen, read_tensors(tiny_model() / "model.safetensors"))
