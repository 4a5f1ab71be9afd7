"""One optimizer step: what gets gradient, what moves, and when the weights must not move."""

import math
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from grpo_trainer.learner import TrainingRow, _to_tensors, score_tokens
from grpo_trainer.model_source import load_model
from grpo_trainer.trees import number
from learners import (
    EOS,
    are_identical,
    config_of,
    copy_of,
    learner_by_position,
    make_learner,
    make_rows,
)
from tiny_model import tiny_model

LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo"]


# --- the ratio


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_M09_the_ratio_is_one_at_every_temperature(temperature: float) -> None:
    """Then the loss is minus the mean advantage, and no token is clipped."""
    learner = make_learner()
    rows = [row for row in make_rows() if row.advantage > 0]
    config = config_of(temperature=temperature, clip_epsilon=1e-4)
    result = learner.update([rows], config, 1)
    mean = sum(row.advantage for row in rows) / len(rows)
    assert result.loss == pytest.approx(-mean, abs=1e-6)
    assert (result.clip_ratio_low, result.clip_ratio_high) == (0.0, 0.0)
    assert result.gradient_norm > 0


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_M11_an_update_makes_good_completions_likelier_and_bad_ones_less(loss_type: str) -> None:
    learner = make_learner(fine_tune_type="full", learning_rate=1e-3)
    rows = make_rows()
    batch = _to_tensors(rows)

    def weighted() -> float:
        logprobs, _ = score_tokens(learner.policy.model, batch, 1.0)
        return number((logprobs * batch.mask_B_T * batch.advantages_B[:, None]).sum())

    before = weighted()
    config = config_of(temperature=1.0, loss_type=loss_type, learning_rate=1e-3)
    assert learner.update([rows], config, 1).applied
    assert weighted() > before


def test_the_prompt_counts() -> None:
    rows = make_rows()
    other = [
        TrainingRow([3, *row.prompt_ids[1:]], row.completion_ids, row.advantage) for row in rows
    ]
    norms = [
        make_learner().update([batch], config_of(), 1).gradient_norm for batch in (rows, other)
    ]
    assert norms[0] != pytest.approx(norms[1], rel=1e-3)


def test_entropy_is_that_of_the_sampling_distribution() -> None:
    learner = make_learner()
    rows = make_rows()
    result = learner.update([rows[:4], rows[4:]], config_of(temperature=0.5), 1)
    total, tokens = 0.0, 0
    model = load_model(str(tiny_model()), lambda message: None).model
    for row in rows:
        ids = row.prompt_ids + row.completion_ids
        logits = model(mx.array([ids[:-1]]))[0] / 0.5
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        entropy_T = -(mx.exp(logprobs) * logprobs).sum(axis=-1)
        total += number(entropy_T[len(row.prompt_ids) - 1 :].sum())
        tokens += len(row.completion_ids)
    assert result.entropy == pytest.approx(total / tokens, rel=1e-4)


# --- which tokens


@pytest.mark.parametrize("partner", [0, 3], ids=["alone", "beside a longer row"])
def test_M13_exactly_the_completion_and_its_end_get_gradient(partner: int) -> None:
    """Prompt 21 22, completion 23 24 EOS: the targets of positions 1, 2 and 3."""
    config = config_of(weight_decay=0.0, learning_rate=1e-2)
    learner = learner_by_position(config)
    before = mx.array(learner.policy.weights["table"])
    rows = [TrainingRow([21, 22], [23, 24, 2], 1.0)]
    if partner:
        rows.append(TrainingRow([21, 22], [9] * (3 + partner), 0.0))
    learner.update([rows], config, 1)
    moved = mx.any(learner.policy.weights["table"] != before, axis=1).tolist()
    assert moved == [False, True, True, True, False, False, False, False]
    rise = (learner.policy.weights["table"] - before)[mx.array([1, 2, 3]), mx.array([23, 24, 2])]
    assert bool((rise > 0).all())


def test_M13_padding_and_company_change_no_log_probability() -> None:
    model = load_model(str(tiny_model()), lambda message: None).model
    rows = make_rows()
    batch = _to_tensors(rows)
    together, _ = score_tokens(model, batch, 1.0)
    for place, row in enumerate(rows):
        alone, _ = score_tokens(model, _to_tensors([row]), 1.0)
        length = alone.shape[1]
        assert number(mx.abs(together[place, :length] - alone[0]).max()) < 1e-5
        assert batch.mask_B_T[place].sum().item() == len(row.completion_ids)
        assert row.completion_ids[-1] == EOS
        assert batch.mask_B_T[place, length - 1].item() == 1.0


# --- when nothing may move


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_M01_without_any_advantage_nothing_moves(kind: str) -> None:
    learner = make_learner(fine_tune_type=kind, weight_decay=0.1)
    weights, model = copy_of(learner.policy.weights), copy_of(learner.policy.model.parameters())
    state = copy_of(learner.optimizer.state)
    flat = [TrainingRow(row.prompt_ids, row.completion_ids, 0.0) for row in make_rows()]
    result = learner.update([flat], config_of(fine_tune_type=kind, weight_decay=0.1), 1)
    assert (result.applied, result.loss, result.gradient_norm) == (False, 0.0, 0.0)
    assert are_identical(copy_of(learner.policy.weights), weights)
    assert are_identical(copy_of(learner.policy.model.parameters()), model)
    assert are_identical(copy_of(learner.optimizer.state), state)
    assert learner.updates == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_M26_a_gradient_that_is_not_finite_costs_one_step_only(bad: float, dtype: str) -> None:
    settings: dict[str, Any] = {"fine_tune_type": "full", "dtype": dtype, "learning_rate": 1e-3}
    config = config_of(**settings)
    learner, witness = (make_learner(**settings) for _ in range(2))
    rows = make_rows()
    for each in (learner, witness):
        each.update([rows], config, 1)
    weights, state = copy_of(learner.policy.weights), copy_of(learner.optimizer.state)
    result = learner.update([rows[:7], [TrainingRow([1], [2], bad)]], config, 2)
    assert not result.applied
    assert not math.isfinite(result.loss)
    assert are_identical(copy_of(learner.policy.weights), weights)
    assert are_identical(copy_of(learner.optimizer.state), state)
    assert learner.is_finite()
    assert learner.updates == 1
    for each in (learner, witness):
        assert each.update([rows], config, 3).applied
    assert are_identical(copy_of(learner.policy.weights), copy_of(witness.policy.weights))
    model = copy_of(learner.policy.model.parameters())
    assert are_identical(model, copy_of(witness.policy.model.parameters()))


def test_weights_that_are_not_finite_are_noticed() -> None:
    learner = make_learner()
    assert learner.is_finite()
    learner.policy.adopt(tree_map(lambda w: w * math.nan, learner.policy.weights))
    assert not learner.is_finite()


# --- what moves


def test_W50_every_weight_moves_in_full_fine_tuning() -> None:
    learner = make_learner(fine_tune_type="full", learning_rate=1e-3, weight_decay=0.0)
    before = copy_of(learner.policy.weights)
    learner.update([make_rows()], config_of(learning_rate=1e-3, weight_decay=0.0), 1)
    after = copy_of(learner.policy.weights)
    installed = copy_of(learner.policy.model.parameters())
    names = {name for name in before if not mx.array_equal(before[name], after[name]).item()}
    assert names == set(before)
    assert any("q_norm" in name for name in names)
    assert any("k_norm" in name for name in names)
    assert are_identical(installed, after)


def test_M12_adapters_move_and_the_frozen_weights_stay() -> None:
    learner = make_learner(learning_rate=1e-2)
    frozen = set(copy_of(learner.policy.model.parameters())) - set(copy_of(learner.policy.weights))
    before = copy_of(learner.policy.model.parameters())
    for step in (1, 2):
        learner.update([make_rows()], config_of(learning_rate=1e-2), step)
    after = copy_of(learner.policy.model.parameters())
    assert frozen
    assert all(bool(mx.array_equal(before[n], after[n]).item()) == (n in frozen) for n in after)


def test_dropout_depends_on_seed_and_step_alone() -> None:
    def norm(seed: int, step: int) -> float:
        config = config_of(seed=seed, lora_dropout=0.5)
        # Adapters that add nothing yet show no dropout.
        learner = make_learner(lora_dropout=0.5)
        learner.policy.adopt(tree_map(lambda w: w + 0.05, learner.policy.weights))
        mx.random.seed(step + 99)
        return learner.update([make_rows()], config, step).gradient_norm

    assert norm(0, 1) == norm(0, 1)
    assert len({norm(0, 1), norm(0, 2), norm(1, 1)}) == 3


@pytest.mark.parametrize("updates", [0, 1])
def test_rollouts_are_without_dropout(updates: int) -> None:
    learner = make_learner(lora_dropout=0.5)
    learner.policy.adopt(tree_map(lambda w: w + 0.05, learner.policy.weights))
    for step in range(updates):
        learner.update([make_rows()], config_of(lora_dropout=0.5), step + 1)
    ids = mx.array([[1, 2, 3]])
    assert mx.array_equal(learner.policy.model(ids), learner.policy.model(ids)).item()
