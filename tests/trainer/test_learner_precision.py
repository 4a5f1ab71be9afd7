"""AdamW: its formula, the learning rate in force, and steps too small for bfloat16."""

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from grpo_trainer.learning_rate import learning_rate_of
from grpo_trainer.model_source import load_model
from grpo_trainer.policy import Policy
from grpo_trainer.rollout import SamplingOptions, decode_greedily
from grpo_trainer.training_rows import TrainingRow
from grpo_trainer.trees import leaves, number
from learners import (
    are_identical,
    config_of,
    copy_of,
    largest_difference,
    learner_by_position,
    make_learner,
    make_rows,
)
from tiny_model import tiny_model


def test_ten_steps_are_those_of_adamw_with_bias_correction() -> None:
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "adamw_beta1": 0.8,
        "adamw_beta2": 0.95,
        "adamw_eps": 1e-6,
        "gradient_clip_norm": None,
    }
    learner = learner_by_position(config_of(**settings))
    target = np.array(learner.policy.weights["table"], dtype=np.float64)
    m, v = np.zeros_like(target), np.zeros_like(target)
    row = TrainingRow([21, 22], [23, 24, 2], 1.0)
    for step in range(1, 11):
        gradient = np.zeros_like(target)
        for position, token in ((1, 23), (2, 24), (3, 2)):
            exponent = np.exp(target[position] / 0.8)
            gradient[position] = exponent / exponent.sum() / 0.8 / 3
            gradient[position, token] -= 1 / 0.8 / 3
        m = 0.8 * m + 0.2 * gradient
        v = 0.95 * v + 0.05 * gradient**2
        update = (m / (1 - 0.8**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-6)
        target = target * (1 - 1e-3 * 0.1) - 1e-3 * update
        learner.update([[row]], config_of(**settings), step)
        found = np.array(learner.policy.weights["table"])
        assert np.abs(found - target).max() < 2e-6, step
    assert learner.updates == 10


@pytest.mark.parametrize(("kind", "rate"), [("lora", 1e-5), ("full", 1e-6)])
def test_the_default_learning_rate_fits_the_kind_of_fine_tuning(kind: str, rate: float) -> None:
    assert learning_rate_of(config_of(fine_tune_type=kind)) == rate
    assert learning_rate_of(config_of(fine_tune_type=kind, learning_rate=0.5)) == 0.5


def test_the_learning_rate_holds_from_the_step_that_it_is_given_for() -> None:
    def distance(rates: tuple[float, ...]) -> float:
        learner = make_learner(fine_tune_type="full", weight_decay=0.0)
        before = copy_of(learner.policy.weights)
        for step, rate in enumerate(rates, start=1):
            learner.update([make_rows()], config_of(learning_rate=rate), step)
        return largest_difference(copy_of(learner.policy.weights), before)

    assert distance((1e-3,)) == pytest.approx(1e-3, rel=0.01)
    assert distance((1e-3, 1e-9)) == pytest.approx(1e-3, rel=0.01)
    assert distance((1e-9, 1e-3)) == pytest.approx(1e-3, rel=0.05)


BFLOAT16: dict[str, Any] = {
    "fine_tune_type": "full",
    "dtype": "bfloat16",
    "learning_rate": 1e-6,
    "weight_decay": 0.0,
    "gradient_clip_norm": None,
}


class SmallSteps(NamedTuple):
    """A policy before and after 100 AdamW steps at 1e-6 under a constant gradient."""

    policy: Policy
    before: dict[str, mx.array]
    after: dict[str, mx.array]


@pytest.fixture(scope="module")
def small_steps() -> SmallSteps:
    learner = make_learner(**BFLOAT16)
    policy = learner.policy
    assert {w.dtype for _, w in leaves(policy.model.parameters())} == {mx.bfloat16}
    before = copy_of(policy.weights)
    rows, config = make_rows()[:2], config_of(**BFLOAT16)
    found = learner.gradient([rows], config)
    constant = found._replace(gradients=tree_map(mx.ones_like, found.gradients))
    learner.gradient = lambda *_: constant  # type: ignore[method-assign]
    for step in range(1, 101):
        assert learner.update([rows], config, step).applied
    return SmallSteps(policy, before, copy_of(policy.weights))


def test_small_steps_are_not_lost_in_a_bfloat16_model(small_steps: SmallSteps) -> None:
    """They move every master weight by 1e-4."""
    _, before, after = small_steps
    assert {w.dtype for w in before.values()} == {mx.float32}
    for name in before:
        error = mx.abs(before[name] - after[name] - 1e-4)
        # Above 1 the steps of float32 itself are 12 % of 1e-6.
        is_small = mx.maximum(mx.abs(before[name]), mx.abs(after[name])) <= 1
        assert number(mx.where(is_small, error, 0).max()) < 2e-6, name
        assert number(error.max()) < 7e-6, name


def test_a_bfloat16_model_samples_with_the_rounded_master_weights(small_steps: SmallSteps) -> None:
    policy, before, after = small_steps
    installed = copy_of(policy.model.parameters())
    rounded = {name: weight.astype(mx.bfloat16) for name, weight in after.items()}
    assert are_identical(installed, rounded)
    moved_bits = sum(
        number((installed[n] != before[n].astype(mx.bfloat16)).sum()) for n in installed
    )
    assert moved_bits > 0.05 * policy.num_trainable
    fresh = load_model(str(tiny_model("qwen3", "bfloat16")), lambda message: None).model
    sampling = SamplingOptions(16)
    fresh.load_weights(list(rounded.items()))
    prompts = [row.prompt_ids for row in make_rows()[::4]]
    assert decode_greedily(policy.model, prompts, sampling) == decode_greedily(
        fresh, prompts, sampling
    )
    ids = mx.array([[1, 2, 3]])
    assert mx.array_equal(policy.model(ids), fresh(ids)).item()
