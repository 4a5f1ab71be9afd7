"""The learning rate of each step: peak, warm-up, decay."""

import math
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol import ConfigError, load_config
from grpo_protocol.messages import Step
from grpo_trainer.learning_rate import learning_rate_at
from learners import config_of
from library_runs import Library


def rates(total: int, **settings: Any) -> list[float]:
    config = config_of(learning_rate=1.0, **settings)
    return [learning_rate_at(config, step, total) for step in range(1, total + 1)]


def test_constant_is_the_peak_throughout() -> None:
    assert rates(4) == [1.0, 1.0, 1.0, 1.0]


def test_warm_up_rises_in_equal_parts_and_reaches_the_peak() -> None:
    assert rates(5, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_falls_by_equal_parts_and_would_be_0_after_the_last_step() -> None:
    assert rates(4, lr_schedule="linear") == [1.0, 0.75, 0.5, 0.25]
    assert rates(6, lr_schedule="linear", warmup_steps=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_cosine_is_half_way_down_in_the_middle() -> None:
    found = rates(4, lr_schedule="cosine")
    expected = [(1 + math.cos(math.pi * share)) / 2 for share in (0, 0.25, 0.5, 0.75)]
    assert found == pytest.approx(expected)
    assert found[2] == pytest.approx(0.5)


def test_the_default_peak_follows_the_kind_of_fine_tuning() -> None:
    assert learning_rate_at(config_of(fine_tune_type="full"), 1, 10) == 1e-6
    assert learning_rate_at(config_of(), 1, 10) == 1e-5
    assert learning_rate_at(config_of(fine_tune_type="dora"), 1, 10) == 1e-5


@pytest.mark.parametrize("kind", ["adafactor", "muon"])
def test_optimizers_with_steps_of_the_same_size_share_the_default(kind: str) -> None:
    assert learning_rate_at(config_of(optimizer_type=kind), 1, 10) == 1e-5
    full = config_of(optimizer_type=kind, fine_tune_type="full")
    assert learning_rate_at(full, 1, 10) == 1e-6


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps=5: must be fewer than max_steps=5"):
        load_config({"warmup_steps": 5, "max_steps": 5})
    load_config({"warmup_steps": 4, "max_steps": 5})


def test_each_step_is_taken_and_reported_with_its_rate(tmp_path: Path) -> None:
    library = Library(
        tmp_path, learning_rate=1e-2, lr_schedule="linear", warmup_steps=1, max_steps=4
    )
    library.train()
    steps = library.all(Step)
    assert [step.learning_rate for step in steps] == pytest.approx([1e-2, 1e-2, 2e-2 / 3, 1e-2 / 3])
    used = library.trainer.learner.optimizer.learning_rate.item()
    assert used == pytest.approx(1e-2 / 3)
