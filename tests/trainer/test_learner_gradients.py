"""Gradients of one step: how they add up over micro-batches, and how they are clipped."""

import math
from typing import Any

import mlx.core as mx
import pytest

from grpo_trainer.learner import Learner, TrainingRow, clip_gradients
from grpo_trainer.trees import leaves, number
from learners import (
    config_of,
    copy_of,
    largest_difference,
    learner_by_position,
    make_learner,
    make_rows,
)

# With so large an epsilon AdamW moves weights in proportion to the gradient, as SGD does, so that
# rounding in a gradient near 0 cannot become a whole step.
LINEAR: dict[str, Any] = {
    "adamw_eps": 1e3,
    "learning_rate": 1.0,
    "weight_decay": 0.0,
    "gradient_clip_norm": None,
}


# --- how gradients add up


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("sizes", [(1,) * 8, (2,) * 4, (4, 4), (3, 5), (7, 1)])
def test_M21_micro_batches_add_up_to_one_batch(loss_type: str, sizes: tuple[int, ...]) -> None:
    rows = make_rows()
    config = config_of(loss_type=loss_type, max_completion_length=16, **LINEAR)
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    pieces = [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    whole, split = (make_learner(fine_tune_type="full", **LINEAR) for _ in range(2))
    start = copy_of(whole.policy.weights)
    expected = whole.update([rows], config, 1)
    found = split.update(pieces, config, 1)
    assert found.loss == pytest.approx(expected.loss, abs=1e-6)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
    moved = copy_of(whole.policy.weights)
    assert largest_difference(moved, copy_of(split.policy.weights)) < 1e-7
    assert largest_difference(moved, start) > 1e-5


def test_rows_without_spread_count_in_the_mean() -> None:
    """A group of equal rewards beside one with spread halves the loss and the gradient."""
    rows = make_rows()[:4]
    flat = [TrainingRow(row.prompt_ids, row.completion_ids, 0.0) for row in rows]
    config = config_of(gradient_clip_norm=None)
    alone = make_learner().update([rows], config, 1)
    beside = make_learner().update([rows, flat], config, 1)
    assert beside.loss == pytest.approx(alone.loss / 2, abs=1e-6)
    assert beside.gradient_norm == pytest.approx(alone.gradient_norm / 2, rel=1e-4)


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


def test_the_norm_is_that_of_the_whole_gradient() -> None:
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
    both, _ = clip_gradients(gradients, max_norm=0.75, max_value=1.0)
    assert both["a"].tolist() == pytest.approx([0.5, -0.5, 0.25], rel=1e-5)


def moments(learner: Learner) -> dict[str, mx.array]:
    """First moments after one update: a tenth of the clipped gradient."""
    return {n: m * 10 for n, m in leaves(learner.optimizer.state) if n.endswith(".m")}


def test_the_clipped_gradient_is_what_the_optimizer_gets() -> None:
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
