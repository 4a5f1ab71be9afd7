"""The optimizers: their formulas, what decay and learning rate mean, and how their state is kept.

The values of torch come from `tests/data/torch_optimizers.py`.
"""

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from grpo_trainer.learning_rate import learning_rate_at
from grpo_trainer.optimizers import is_muon_matrix, make_optimizer
from grpo_trainer.tensor_file import read_tree, write_tensors
from grpo_trainer.training_rows import TrainingRow
from grpo_trainer.trees import ParameterTree, leaves, number
from learners import (
    are_identical,
    config_of,
    copy_of,
    largest_difference,
    logprobs_of,
    make_rows,
)
from optimizer_walks import SHAPES, TYPES, learner_with, settings_of, tree_of, walk

TORCH = json.loads((Path(__file__).parents[1] / "data" / "torch_optimizers.json").read_text())

# --- the formulas


@pytest.mark.parametrize("case", TORCH["cases"], ids=lambda case: str(case["settings"]))
def test_ten_steps_are_those_of_torch(case: dict[str, Any]) -> None:
    names = list(case["last"])

    def tree(values: dict[str, Any]) -> ParameterTree:
        return {"layers": [{name: {"weight": mx.array(values[name])} for name in names}]}

    weights = tree(TORCH["weights"])
    optimizer = make_optimizer(config_of(learning_rate=1.0, **case["settings"]), weights)
    for step, rate in enumerate(case["rates"]):
        optimizer.learning_rate = rate
        gradients = {name: TORCH["gradients"][name][step] for name in names}
        weights = optimizer.apply_gradients(tree(gradients), weights)
        if step == 0:
            first = copy_of(weights)
    assert largest_difference(first, copy_of(tree(case["first"]))) < 1e-6
    assert largest_difference(copy_of(weights), copy_of(tree(case["last"]))) < 1e-6
    assert int(optimizer.step.item()) == 10


@pytest.mark.parametrize("kind", TYPES)
def test_decay_shrinks_each_weight_by_the_rate_and_stays_out_of_the_moments(kind: str) -> None:
    weights = tree_of(SHAPES, 0)
    decaying = make_optimizer(settings_of(kind, weight_decay=0.5), weights)
    plain = make_optimizer(settings_of(kind, weight_decay=0.0), weights)
    expected = weights
    for step, rate in enumerate((1e-2, 3e-2, 2e-2), start=1):
        before, shrunk = expected, tree_map(lambda w, r=rate: w * (1 - 0.5 * r), expected)
        expected = walk(decaying, before, [rate], step)
        without = walk(plain, before, [rate], step)
        moves = tree_map(mx.subtract, without, before)
        wanted = tree_map(mx.add, shrunk, moves)
        assert largest_difference(copy_of(expected), copy_of(wanted)) < 2e-7
        assert are_identical(copy_of(decaying.state), copy_of(plain.state))


def test_sgd_remembers_its_last_move_only_when_asked_to() -> None:
    weights = tree_of(SHAPES, 0)
    plain = make_optimizer(config_of(optimizer_type="sgd", learning_rate=1.0), weights)
    assert {name for name, _ in leaves(plain.state)} == {"step", "learning_rate"}
    moments = leaves(make_optimizer(settings_of("sgd"), weights).state)
    assert {name for name, _ in moments} == {
        "step",
        "learning_rate",
        *(f"{name}.v" for name in SHAPES),
    }


@pytest.mark.parametrize("kind", TYPES)
def test_a_weight_without_gradient_does_not_move(kind: str) -> None:
    """Such as lora_a while lora_b is 0, and embeddings of tokens that nobody used."""
    weights = tree_of(SHAPES, 0)
    optimizer = make_optimizer(settings_of(kind, weight_decay=0.0), weights)
    zero = tree_map(mx.zeros_like, weights)
    after = weights
    for _ in range(2):
        after = optimizer.apply_gradients(zero, after)
    assert are_identical(copy_of(after), copy_of(weights))
    moved = walk(optimizer, after, [1e-2], 3)
    assert all(bool(mx.isfinite(weight).all()) for _, weight in leaves(moved))


# --- its state in a file


@pytest.mark.parametrize("kind", [*TYPES, "sgd without momentum"])
@pytest.mark.parametrize("part", [{True, False}, {True}, {False}], ids=["all", "matrices", "rest"])
def test_an_optimizer_that_was_saved_goes_on_bit_for_bit(
    tmp_path: Path, kind: str, part: set[bool]
) -> None:
    shapes = {n: s for n, s in SHAPES.items() if is_muon_matrix(n, mx.zeros(s)) in part}
    config = settings_of(kind) if kind in TYPES else settings_of("sgd", sgd_momentum=0.0)
    weights, rates = tree_of(shapes, 0), [1e-2, 2e-2, 3e-2]
    optimizer = make_optimizer(config, weights)
    midway = walk(optimizer, weights, rates, 1)
    write_tensors(tmp_path / "state.safetensors", dict(leaves(optimizer.state)))
    expected = walk(optimizer, midway, rates, 4)

    resumed = make_optimizer(config, tree_of(shapes, 0))
    resumed.state = read_tree(tmp_path / "state.safetensors", like=resumed.state)
    assert int(resumed.step.item()) == 3
    found = walk(resumed, midway, rates, 4)
    assert are_identical(copy_of(found), copy_of(expected))
    assert are_identical(copy_of(resumed.state), copy_of(optimizer.state))
    # Norms add up over the tensors in the order of the tree.
    assert [name for name, _ in leaves(found)] == list(shapes)
    assert [name for name, _ in leaves(expected)] == list(shapes)


@pytest.mark.parametrize("kind", TYPES)
def test_all_moments_are_float32(kind: str) -> None:
    optimizer = make_optimizer(settings_of(kind), tree_of(SHAPES, 0))
    walk(optimizer, tree_of(SHAPES, 0), [1e-2], 1)
    dtypes = {name: array.dtype for name, array in leaves(optimizer.state)}
    assert dtypes.pop("step") == mx.uint64
    assert set(dtypes.values()) == {mx.float32}


# --- the learning rate of each step


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("kind", TYPES)
def test_every_weight_moves_in_proportion_to_the_rate_of_the_step(kind: str, schedule: str) -> None:
    """The moments do not depend on the rate, so a twin at a constant rate shows its share."""
    config = settings_of(kind, weight_decay=0.0, lr_schedule=schedule, warmup_steps=2)
    weights = twin_weights = tree_map(mx.zeros_like, tree_of(SHAPES, 0))
    scheduled, twin = make_optimizer(config, weights), make_optimizer(config, weights)
    for step in range(1, 7):
        rate = learning_rate_at(config, step, 6)
        before, twin_before = weights, twin_weights
        weights = walk(scheduled, before, [rate], step)
        twin_weights = walk(twin, twin_before, [1e-2], step)
        moves = tree_map(mx.subtract, weights, before)
        twin_moves = tree_map(mx.subtract, twin_weights, twin_before)
        shares = tree_map(
            lambda move, other: mx.linalg.norm(move) / mx.linalg.norm(other), moves, twin_moves
        )
        assert [number(share) for _, share in leaves(shares)] == pytest.approx(
            [rate / 1e-2] * len(SHAPES), rel=1e-4
        )


# --- learning


@pytest.mark.parametrize("kind", TYPES)
def test_least_squares_are_found(kind: str) -> None:
    """Two layers in a row have to become a given map."""
    keys = mx.random.split(mx.random.key(3), 4)
    inputs = mx.random.normal((64, 8), key=keys[0])
    wanted = inputs @ mx.random.normal((8, 8), key=keys[1]) + 0.5
    weights: ParameterTree = {
        "layers": [{"weight": 0.3 * mx.random.normal((8, 8), key=key)} for key in keys[2:]],
        "bias": mx.zeros(8),
    }

    def loss(tree: ParameterTree) -> mx.array:
        first, second = (layer["weight"] for layer in tree["layers"])
        found: mx.array = inputs @ first @ second + tree["bias"]
        return (found - wanted).square().mean()

    peak = {"sgd": 2e-2, "muon": 1e-1}.get(kind, 3e-2)
    config = settings_of(kind, weight_decay=0.0, learning_rate=peak, lr_schedule="linear")
    optimizer = make_optimizer(config, weights)
    start = number(loss(weights))
    for step in range(1, 201):
        optimizer.learning_rate = learning_rate_at(config, step, 200)
        weights = optimizer.apply_gradients(mx.grad(loss)(weights), weights)
        mx.eval(weights, optimizer.state)
    assert number(loss(weights)) < 0.02 * start


RATES = {"adamw": 1e-3, "sgd": 0.1, "adafactor": 1e-3, "muon": 1e-3}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("fine_tune_type", ["lora", "full"])
def test_good_completions_become_likelier_step_by_step(kind: str, fine_tune_type: str) -> None:
    rate = RATES[kind] * (3 if fine_tune_type == "lora" else 1)
    learner, config = learner_with(kind, fine_tune_type=fine_tune_type, learning_rate=rate)

    def gain() -> float:
        rows = make_rows()
        means = [sum(lps) / len(lps) for lps in logprobs_of(learner, rows, config)]
        return sum(row.advantage * mean for row, mean in zip(rows, means, strict=True))

    found = [gain()]
    for step in range(1, 5):
        assert learner.update([make_rows()], config, step).applied
        found.append(gain())
    assert found == sorted(found)
    assert found[-1] > found[0] + 0.1


# --- steps that must not be taken


@pytest.mark.parametrize("kind", TYPES)
def test_W51_a_step_that_is_not_finite_leaves_the_optimizer_as_it_was(kind: str) -> None:
    learner, config = learner_with(kind, fine_tune_type="full", learning_rate=1e-3)
    rows = make_rows()
    learner.update([rows], config, 1)
    weights, state = copy_of(learner.policy.weights), copy_of(learner.optimizer.state)
    bad = [TrainingRow(row.prompt_ids, row.completion_ids, math.nan) for row in rows]
    result = learner.update([rows, bad, rows], config, 2)
    assert not result.is_finite
    assert not result.applied
    assert are_identical(copy_of(learner.policy.weights), weights)
    assert are_identical(copy_of(learner.optimizer.state), state)
    assert int(learner.optimizer.step.item()) == learner.updates == 1
