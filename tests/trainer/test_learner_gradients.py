"""Gradients of one step: the memory that they need, and how they are clipped."""

import math
from typing import Any

import mlx.core as mx
import pytest

from grpo_trainer.gradient_clipping import clip_gradients
from grpo_trainer.learner import Learner
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

# --- memory


def peak_bytes(num_micro_batches: int) -> int:
    """Memory that one update needs beyond what it begins with."""
    learner = learner_by_position(config_of(), vocabulary=250_000)
    batch = [TrainingRow([21, 22], [23, 24, 2], 1.0)]
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    learner.update([batch] * num_micro_batches, config_of(), 1)
    return mx.get_peak_memory() - before


def test_more_micro_batches_need_no_more_memory() -> None:
    gradient = 8 * 250_000 * 4
    assert peak_bytes(12) < peak_bytes(2) + gradient


# --- clipping


def test_W47_the_norm_is_that_of_the_whole_gradient() -> None:
    gradients = {"a": mx.array([3.0]), "b": {"c": mx.array([[4.0]])}}
    clipped, norm = clip_gradients(gradients, max_norm=1.0, max_value=None)
    assert number(norm) == pytest.approx(5.0)
    assert number(clipped["a"]) == pytest.approx(0.6, rel=1e-5)
    assert number(clipped["b"]["c"]) == pytest.approx(0.8, rel=1e-5)
    kept, _ = clip_gradients(gradients, max_norm=6.0, max_value=None)
    assert number(kept["a"]) == 3.0


def test_W49_element_clipping_works_and_is_off_without_it() -> None:
    gradients = {"a": mx.array([3.0, -3.0, 0.5])}
    clipped, norm = clip_gradients(gradients, max_norm=None, max_value=1.0)
    assert clipped["a"].tolist() == [1.0, -1.0, 0.5]
    assert number(norm) == pytest.approx(math.sqrt(18.25))
    free, _ = clip_gradients(gradients, max_norm=None, max_value=None)
    assert free["a"].tolist() == [3.0, -3.0, 0.5]
    assert config_of().gradient_clip_value is None
    both, _ = clip_gradients(gradients, max_norm=0.75, max_value=1.0)
    assert both["a"].tolist() == pytest.approx([0.5, -0.5, 0.25], rel=1e-5)


def moments(learner: Learner) -> dict[str, mx.array]:
    """First moments after one update: a tenth of the clipped gradient."""
    return {n: m * 10 for n, m in leaves(learner.optimizer.state) if n.endswith(".m")}


def test_W47_the_whole_accumulated_gradient_is_clipped_before_the_optimizer_gets_it() -> None:
    rows = make_rows()
    halves = [rows[:4], rows[4:]]
    free = make_learner()
    norm = free.update(halves, config_of(gradient_clip_norm=None), 1).gradient_norm
    by_norm = make_learner()
    result = by_norm.update(halves, config_of(gradient_clip_norm=norm / 4), 1)
    assert result.gradient_norm == pytest.approx(norm)
    squares = [number(m.square().sum()) for m in moments(by_norm).values()]
    assert math.sqrt(sum(squares)) == pytest.approx(norm / 4, rel=1e-4)
    by_value = make_learner()
    by_value.update(halves, config_of(gradient_clip_norm=None, gradient_clip_value=1e-4), 1)
    expected = {name: mx.clip(m, -1e-4, 1e-4) for name, m in moments(free).items()}
    assert largest_difference(moments(by_value), expected) < 1e-9
    assert max(number(mx.abs(m).max()) for m in moments(free).values()) > 2e-4


# --- none at all


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_where_masks_leave_nothing_nothing_moves(kind: str) -> None:
    """Neither decay nor the moments of the step before."""
    settings: dict[str, Any] = {
        "fine_tune_type": kind,
        "weight_decay": 0.1,
        "learning_rate": 1e-2,
    }
    learner = make_learner(**settings)
    learner.update([make_rows()], config_of(**settings), 1)
    weights, state = copy_of(learner.policy.weights), copy_of(learner.optimizer.state)
    masked = config_of(**settings, mismatch_correction="sequence_mask", mismatch_max=1e-6)
    result = learner.update([make_rows()], masked, 2)
    assert (result.gradient_norm, result.applied, result.is_finite) == (0.0, False, True)
    assert are_identical(copy_of(learner.policy.weights), weights)
    assert are_identical(copy_of(learner.optimizer.state), state)
