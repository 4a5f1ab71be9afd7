"""The objective: TRL's golden numbers, and what may not depend on how a step is cut."""

import mlx.core as mx
import pytest

from grpo_protocol.config import LossType
from grpo_trainer.loss import LossParts, Objective, grpo_loss
from grpo_trainer.trees import number

# Two completions of two and three tokens; rewards 1 and 0 give these advantages.
NEW = [[-1.0, -0.5, 0.0], [-2.0, -1.0, -0.7]]
OLD = [[-1.3, -0.6, 0.0], [-1.8, -0.9, -1.2]]
MASK = [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
ADVANTAGES = [0.707007, -0.707007]


def objective(loss_type: LossType, **changes: float) -> Objective:
    values: dict[str, float] = {
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "max_completion_length": 4,
        "total_rows": 2,
        "total_tokens": 5,
        "num_micro_batches": 1,
        **changes,
    }
    return Objective(loss_type=loss_type, **values)  # type: ignore[arg-type]


def loss_of(new: mx.array, goal: Objective) -> LossParts:
    return grpo_loss(new, mx.array(OLD), mx.array(ADVANTAGES), mx.array(MASK), goal)


@pytest.mark.parametrize(
    ("loss_type", "value", "gradient"),
    [
        ("grpo", -0.024211, [0, -0.195341, 0.096475, 0.106621, 0.194276]),
        ("bnpo", 0.139580, [0, -0.156273, 0.115770, 0.127945, 0.233131]),
        ("dapo", 0.139580, [0, -0.156273, 0.115770, 0.127945, 0.233131]),
        ("dr_grpo", 0.087237, [0, -0.097670, 0.072356, 0.079966, 0.145707]),
    ],
)
def test_golden_values_and_gradients_of_trl(
    loss_type: LossType, value: float, gradient: list[float]
) -> None:
    goal = objective(loss_type)
    loss, slope = mx.value_and_grad(lambda new: loss_of(new, goal).loss)(mx.array(NEW))
    assert number(loss) == pytest.approx(value, abs=1e-5)
    rows = slope.tolist()
    assert rows[0][:2] + rows[1] == pytest.approx(gradient, abs=1e-5)
    assert rows[0][2] == 0.0


def test_clipped_tokens_are_counted_by_side() -> None:
    parts = loss_of(mx.array(NEW), objective("grpo"))
    assert number(parts.clipped_high) == 1  # ratio 1.35 above 1.28 with A > 0
    assert number(parts.clipped_low) == 0
    lower = mx.array([[-1.0, -0.5, 0.0], [-2.0, -1.6, -0.7]])  # ratio 0.50 with A < 0
    assert number(loss_of(lower, objective("grpo")).clipped_low) == 1


def test_the_clip_is_pessimistic() -> None:
    """A bad action that became likelier is pushed down with its full ratio; a good one is not."""
    one = objective("dapo", total_rows=1, total_tokens=1)

    def slope(new: float, old: float, advantage: float) -> float:
        gradient = mx.grad(
            lambda x: (
                grpo_loss(x, mx.array([[old]]), mx.array([advantage]), mx.array([[1.0]]), one).loss
            )
        )
        return number(gradient(mx.array([[new]])))

    assert slope(-0.5, -1.0, 1.0) == 0.0
    assert slope(-1.5, -1.0, -1.0) == 0.0
    assert slope(-0.5, -1.0, -1.0) == pytest.approx(2.718281828**0.5, rel=1e-5)
    assert slope(-1.5, -1.0, 1.0) == pytest.approx(-(2.718281828**-0.5), rel=1e-5)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_M11_the_ratio_has_a_gradient_where_old_and_new_are_equal(loss_type: LossType) -> None:
    new = mx.array(NEW)

    def loss(x: mx.array) -> mx.array:
        old = mx.stop_gradient(x)
        goal = objective(loss_type, epsilon_high=0.2)
        return grpo_loss(x, old, mx.array(ADVANTAGES), mx.array(MASK), goal).loss

    slope = mx.grad(loss)(new) * mx.array(MASK)
    signs = mx.sign(slope).tolist()
    assert signs == [[-1, -1, 0], [1, 1, 1]]


ROWS = 8
LENGTHS = list(range(1, ROWS + 1))


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("cut", [1, 2, 3, 4, 8])
def test_M21_value_and_gradient_do_not_depend_on_the_micro_batches(
    loss_type: LossType, cut: int
) -> None:
    mx.random.seed(0)
    new = mx.random.normal((ROWS, ROWS)) * 0.3 - 1
    old = new + mx.random.normal((ROWS, ROWS)) * 0.2
    advantages = mx.random.normal((ROWS,))
    mask = (mx.arange(ROWS)[None] < mx.array(LENGTHS)[:, None]).astype(mx.float32)

    def loss(x: mx.array, size: int) -> mx.array:
        goal = objective(
            loss_type,
            max_completion_length=ROWS,
            total_rows=ROWS,
            total_tokens=sum(LENGTHS),
            num_micro_batches=-(-ROWS // size),
        )
        parts = [slice(start, start + size) for start in range(0, ROWS, size)]
        shares = [grpo_loss(x[p], old[p], advantages[p], mask[p], goal).loss for p in parts]
        return mx.stack(shares).sum()

    whole, whole_slope = mx.value_and_grad(loss)(new, ROWS)
    split, split_slope = mx.value_and_grad(loss)(new, cut)
    assert number(split) == pytest.approx(number(whole), abs=1e-6)
    assert number(mx.abs(split_slope - whole_slope).max()) < 1e-6


def test_bnpo_averages_over_each_micro_batch_by_design() -> None:
    """Micro-batches of one row each, of 2 and 3 tokens: the mean of their means, as in grpo."""
    goal = objective("bnpo", num_micro_batches=2)
    parts = [slice(row, row + 1) for row in range(2)]
    new, old = mx.array(NEW), mx.array(OLD)
    advantages, mask = mx.array(ADVANTAGES), mx.array(MASK)
    shares = [grpo_loss(new[p], old[p], advantages[p], mask[p], goal).loss for p in parts]
    by_row = loss_of(new, objective("grpo")).loss
    assert number(mx.stack(shares).sum()) == pytest.approx(number(by_row), abs=1e-6)
