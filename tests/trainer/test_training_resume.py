"""A run that ends between two steps goes on as if it had not, however it trains."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import Step
from grpo_trainer.errors import CheckpointError, TrainingError
from library_runs import Library
from run_results import files_of, logged_steps, rows_of
from sent_commands import send_after_steps

STEPS = 5
VARIANTS: dict[str, dict[str, Any]] = {
    "muon": {"optimizer_type": "muon", "fine_tune_type": "full"},
    "adafactor": {"optimizer_type": "adafactor"},
    "sgd": {"optimizer_type": "sgd"},
    "sgd with momentum": {"optimizer_type": "sgd", "sgd_momentum": 0.9, "fine_tune_type": "full"},
    "warm-up and decay": {"lr_schedule": "cosine", "warmup_steps": 2},
    "dora": {"fine_tune_type": "dora", "lora_keys": ["self_attn.v_proj", "mlp.down_proj"]},
    "dropout": {"lora_dropout": 0.2},
    "small chunks": {
        "gradient_checkpointing": True,
        "forward_chunk_size": 1,
        "generation_chunk_size": 3,
        "vocab_chunk_size": 50,
    },
}


def library(folder: Path, **settings: Any) -> Library:
    values = {"max_steps": STEPS, "learning_rate": 1e-2, "save_interval": 0}
    return Library(folder, **{**values, **settings})


def stopped_and_resumed(folder: Path, step: int, **settings: Any) -> Library:
    first = library(folder, **settings)
    with pytest.MonkeyPatch.context() as monkeypatch:
        send_after_steps(first, monkeypatch, {step: ["STOP"]})
        assert first.train().status == "stopped"
    return library(folder, resume_from_checkpoint="latest", **settings)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_R15_the_result_is_that_of_the_uninterrupted_run(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    whole = library(tmp_path / "whole", **settings)
    whole.train()
    again = stopped_and_resumed(tmp_path / "parts", 2, **settings)
    again.train()
    assert [event.step for event in again.all(Step)] == [3, 4, 5]
    assert files_of(whole.folder / "final")
    assert files_of(again.folder / "final") == files_of(whole.folder / "final")
    assert rows_of(again.folder) == rows_of(whole.folder)
    assert logged_steps(again.folder) == logged_steps(whole.folder)


def spoil(run: Library) -> None:
    """Every gradient of `run` from now on is no number."""
    update = run.trainer.learner.update

    def spoiled(micro_batches: Any, *args: Any, **options: Any) -> Any:
        rows = [[replace(row, advantage=math.nan) for row in batch] for batch in micro_batches]
        return update(rows, *args, **options)

    run.trainer.learner.update = spoiled  # type: ignore[method-assign]


def test_W51_bad_gradients_from_before_a_resume_count(tmp_path: Path) -> None:
    first = library(tmp_path, max_nan_gradients=3)
    spoil(first)
    with pytest.MonkeyPatch.context() as monkeypatch:
        send_after_steps(first, monkeypatch, {2: ["STOP"]})
        assert first.train().status == "stopped"
    again = library(tmp_path, max_nan_gradients=3, resume_from_checkpoint="latest")
    spoil(again)
    with pytest.raises(TrainingError, match="step 3: 3 steps had a loss or gradient"):
        again.train()


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        (
            {"optimizer_type": "adafactor"},
            {},
            "was trained with optimizer_type=adafactor, not adamw; resume with optimizer_type=ada",
        ),
        ({"lora_rank": 4}, {}, "was trained with lora_rank=4, not 8; resume with lora_rank=4"),
        ({}, {"fine_tune_type": "dora"}, "was trained with fine_tune_type=lora, not dora"),
    ],
)
def test_a_resume_that_would_train_other_tensors_names_the_setting(
    tmp_path: Path, then: dict[str, Any], now: dict[str, Any], told: str
) -> None:
    library(tmp_path, max_steps=1, **then).train()
    other = library(tmp_path, resume_from_checkpoint="latest", **now)
    with pytest.raises(CheckpointError, match=re.escape(told)):
        other.train()


def test_a_resume_without_the_adapters_of_the_start_asks_for_them(tmp_path: Path) -> None:
    library(tmp_path / "start", max_steps=1, lora_rank=4).train()
    adapters = str(tmp_path / "start" / "run" / "final")
    library(tmp_path, max_steps=1, adapter_path=adapters).train()
    other = library(tmp_path, resume_from_checkpoint="latest")
    with pytest.raises(CheckpointError, match=re.escape(f"resume with adapter_path={adapters}")):
        other.train()
    again = library(tmp_path, resume_from_checkpoint="latest", adapter_path=adapters)
    assert again.train().steps == STEPS


def test_a_longer_run_with_a_schedule_says_that_its_rates_are_others(tmp_path: Path) -> None:
    library(tmp_path, max_steps=2, lr_schedule="cosine").train()
    again = library(tmp_path, max_steps=4, lr_schedule="cosine", resume_from_checkpoint="latest")
    again.train()
    assert any("max_steps 2 → 4" in line for line in again.logs("warn"))
    library(tmp_path / "other", max_steps=2).train()
    again = library(tmp_path / "other", max_steps=4, resume_from_checkpoint="latest")
    again.train()
    assert again.logs("warn") == []
