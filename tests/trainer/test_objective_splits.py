"""What the loss and gradient of a step must not depend on, through a real model.

How rows are padded, ordered and cut into micro-batches is a matter of memory and speed.
"""

from typing import Any

import pytest

from grpo_protocol import GRPOConfig
from grpo_trainer.learner import Learner
from grpo_trainer.training_rows import TrainingRow
from learners import (
    EOS,
    LOSS_TYPES,
    SPLIT_INVARIANT,
    config_of,
    copy_of,
    cut,
    largest,
    largest_difference,
    loss_and_gradient,
    make_learner,
    make_rows,
    off_policy_rows,
    scaled,
)

SPLITS = [(1,) * 8, (2,) * 4, (4, 4), (3, 5), (7, 1)]
EVERYTHING: dict[str, Any] = {
    "kl_coef": 0.1,
    "mismatch_correction": "token_truncate",
    "off_policy_mask_threshold": 0.05,
    "entropy_coef": 0.01,
    "top_entropy_quantile": 0.6,
}
"""Every term that a step can have, so that each one is divided and masked right."""


def settings_of(loss_type: str, **changes: Any) -> GRPOConfig:
    return config_of(
        loss_type=loss_type, max_completion_length=16, fine_tune_type="full", **changes
    )


@pytest.fixture(scope="module")
def learner() -> Learner:
    """Its weights never move here."""
    return make_learner(fine_tune_type="full", entropy_coef=0.01)


@pytest.fixture(scope="module")
def rows(learner: Learner) -> list[TrainingRow]:
    return off_policy_rows(learner, config_of())


def expect_equal(
    learner: Learner,
    first: list[list[TrainingRow]],
    second: list[list[TrainingRow]],
    config: GRPOConfig,
) -> None:
    """The same loss, and the same step of SGD at learning rate 1."""
    loss, gradient = loss_and_gradient(learner, first, config)
    other_loss, other_gradient = loss_and_gradient(learner, second, config)
    assert other_loss == pytest.approx(loss, abs=1e-5)
    assert largest(gradient) > 1e-2
    assert largest_difference(gradient, other_gradient) <= 1e-5


# --- micro-batches


@pytest.mark.parametrize("loss_type", SPLIT_INVARIANT)
@pytest.mark.parametrize("extra", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_M21_W46_micro_batches_add_up_to_one_batch(
    learner: Learner,
    rows: list[TrainingRow],
    loss_type: str,
    extra: dict[str, Any],
    sizes: tuple[int, ...],
) -> None:
    config = settings_of(loss_type, **extra)
    expect_equal(learner, [rows], cut(rows, sizes), config)


@pytest.mark.parametrize("loss_type", SPLIT_INVARIANT)
def test_M21_the_order_of_rows_does_not_matter(
    learner: Learner, rows: list[TrainingRow], loss_type: str
) -> None:
    config = settings_of(loss_type, **EVERYTHING)
    shuffled = [rows[place] for place in (5, 0, 7, 2, 3, 6, 1, 4)]
    expect_equal(learner, cut(rows, (4, 4)), cut(shuffled, (4, 4)), config)


@pytest.mark.parametrize("loss_type", SPLIT_INVARIANT)
@pytest.mark.parametrize("sizes", [(2, 2, 2, 1), (4, 3)], ids=str)
def test_M21_the_seven_rows_at_the_end_of_an_epoch_count_in_full(
    learner: Learner, rows: list[TrainingRow], loss_type: str, sizes: tuple[int, ...]
) -> None:
    expect_equal(learner, [rows[:7]], cut(rows[:7], sizes), settings_of(loss_type))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("times", [2, 4])
def test_W47_accumulation_scales_once(
    learner: Learner, rows: list[TrainingRow], loss_type: str, times: int
) -> None:
    """The same micro-batch over and over is the same step."""
    config = settings_of(loss_type, entropy_coef=0.01)
    expect_equal(learner, [rows], [rows] * times, config)


def test_bnpo_averages_over_each_micro_batch_by_design(
    learner: Learner, rows: list[TrainingRow]
) -> None:
    """Micro-batches of one row each make it the mean of the rows' means, as in grpo."""
    bnpo, grpo, dapo = (settings_of(name) for name in ("bnpo", "grpo", "dapo"))
    expect_by_row, by_row = loss_and_gradient(learner, [rows], grpo)
    expect_by_token, by_token = loss_and_gradient(learner, [rows], dapo)
    loss, gradient = loss_and_gradient(learner, cut(rows, (1,) * 8), bnpo)
    assert loss == pytest.approx(expect_by_row, abs=1e-5)
    assert largest_difference(gradient, by_row) <= 1e-5
    loss, gradient = loss_and_gradient(learner, [rows], bnpo)
    assert loss == pytest.approx(expect_by_token, abs=1e-5)
    assert largest_difference(gradient, by_token) <= 1e-5
    assert largest_difference(by_row, by_token) > 1e-2


def test_the_parameters_move_alike_however_a_step_is_cut(rows: list[TrainingRow]) -> None:
    """With so large an epsilon AdamW moves weights in proportion to the gradient, as SGD does."""
    linear: dict[str, Any] = {
        "adamw_eps": 1e3,
        "learning_rate": 1e3,
        "weight_decay": 0.0,
        "gradient_clip_norm": None,
    }
    config = settings_of("dapo", **linear)
    whole, split = (make_learner(fine_tune_type="full", **linear) for _ in range(2))
    start = copy_of(whole.policy.weights)
    expected = whole.update([rows], config, 1)
    found = split.update(cut(rows, (2,) * 4), config, 1)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)
    moved = copy_of(whole.policy.weights)
    assert largest_difference(moved, copy_of(split.policy.weights)) <= 1e-5
    assert largest_difference(moved, start) > 1e-2


# --- padding and company


@pytest.mark.parametrize("loss_type", SPLIT_INVARIANT)
def test_W45_padding_changes_nothing(
    learner: Learner, rows: list[TrainingRow], loss_type: str
) -> None:
    """Beside a longer row the others are padded to its length, which alone they are not."""
    long = TrainingRow(
        list(range(1, 30)), [7] * 20 + [EOS], 0.0, [-5.0] * 21, [-5.0] * 21, [-5.0] * 21
    )
    config = settings_of(loss_type, kl_coef=0.1)
    expect_equal(learner, [rows, [long]], [[*rows, long]], config)
    expect_equal(learner, [[rows[0]], [long]], [[rows[0], long]], config)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_rows_without_advantage_beside_others_count_in_the_mean(
    learner: Learner, loss_type: str
) -> None:
    """A group of equal rewards beside one with spread halves the loss and the gradient."""
    rows = make_rows()[:4]
    flat = [TrainingRow([9, 9, 9, *row.prompt_ids], row.completion_ids, 0.0) for row in rows]
    config = settings_of(loss_type)
    alone, gradient = loss_and_gradient(learner, [rows], config)
    beside, smaller = loss_and_gradient(learner, [rows, flat], config)
    assert beside == pytest.approx(alone / 2, abs=1e-6)
    assert largest_difference(smaller, scaled(gradient, 0.5)) < 1e-5
    assert largest(gradient) > 1e-2


# --- what the losses divide by


def test_W48_each_loss_divides_by_what_it_is_named_for(learner: Learner) -> None:
    """With a ratio of 1 every token's term is minus its row's advantage."""
    rows = make_rows()
    lengths = [len(row.completion_ids) for row in rows]
    pairs = list(zip(rows, lengths, strict=True))
    total = -sum(row.advantage * length for row, length in pairs)
    halves = [
        -sum(row.advantage * length for row, length in half) / sum(n for _, n in half)
        for half in (pairs[:4], pairs[4:])
    ]
    expected = {
        "grpo": -sum(row.advantage for row in rows) / 8,
        "bnpo": sum(halves) / 2,
        "dr_grpo": total / (8 * 16),
        "dapo": total / sum(lengths),
        "luspo": total / 8,
    }
    found = {
        name: loss_and_gradient(learner, [rows[:4], rows[4:]], settings_of(name))[0]
        for name in expected
    }
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(value, 3) for value in expected.values()}) == len(expected)


def test_W48_dr_grpo_divides_by_the_limit_and_dapo_by_the_tokens_that_there_are(
    learner: Learner,
) -> None:
    rows = make_rows()
    losses = {
        (name, limit): loss_and_gradient(
            learner,
            [rows],
            config_of(loss_type=name, max_completion_length=limit, fine_tune_type="full"),
        )[0]
        for name in ("dr_grpo", "dapo")
        for limit in (16, 32)
    }
    assert losses["dr_grpo", 32] == pytest.approx(losses["dr_grpo", 16] / 2, abs=1e-6)
    assert losses["dapo", 32] == losses["dapo", 16]
