"""A model whose gradient cannot be taken is refused before a run begins."""

from pathlib import Path

import mlx.core as mx
import pytest

from architectures import make_architecture, make_architecture_folder
from grpo_trainer.errors import ModelError
from grpo_trainer.gradient_probe import expect_gradient, short_gradients
from grpo_trainer.trainer import GRPOTrainer
from grpo_trainer.trees import number
from learners import config_of, make_learner
from library_runs import letters


def test_an_operation_without_a_gradient_is_named(tmp_path: Path) -> None:
    folder = make_architecture_folder(tmp_path / "model", "deepseek_v41")
    with pytest.raises(ModelError, match=r"cannot be trained: its gradient fails: .*VJP"):
        GRPOTrainer.create(config_of(folder), reward_functions=[letters])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5", "gemma3_text", "mamba2"])
def test_others_pass_and_stay_as_they_were(name: str) -> None:
    model = make_architecture(name)
    model.eval()
    mx.random.seed(3)
    expect_gradient(model, name)
    assert not model.training
    found = mx.random.uniform()
    mx.random.seed(3)
    assert number(found) == number(mx.random.uniform())


def test_every_trainable_weight_has_one() -> None:
    learner = make_learner(fine_tune_type="full")
    slopes = short_gradients(learner.policy.model)
    assert all(number(mx.abs(slope).max()) > 0 for slope in slopes.values())
