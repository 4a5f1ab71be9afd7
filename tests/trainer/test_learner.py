"""One optimizer step: its ratio and KL, what it makes likelier, and when nothing may move."""

import math
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from grpo_protocol import GRPOConfig
from grpo_trainer.learner import Learner
from grpo_trainer.model_source import load_model
from grpo_trainer.training_rows import TrainingRow
from grpo_trainer.trees import number
from learners import (
    LOSS_TYPES,
    are_identical,
    config_of,
    copy_of,
    cut,
    largest,
    largest_difference,
    logprobs_of,
    loss_and_gradient,
    make_learner,
    make_rows,
)
from tiny_model import tiny_model

TEMPERATURES = [0.6, 1.0, 1.5]
SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {},
    "filters": {"top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalties": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
    },
    "both": {"top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.2},
}


def update(learner: Learner, config: GRPOConfig, step: int = 1) -> Any:
    """One step on two micro-batches, with all that has to be known of them first."""
    batches = [learner.with_logprobs(batch, config) for batch in cut(make_rows(), (4, 4))]
    return learner.update(batches, config, step)


# --- the ratio and the KL before anything has moved


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_M09_the_ratio_is_one_at_every_temperature(temperature: float, sampling: str) -> None:
    """Then the loss is minus the mean advantage, and no token is clipped."""
    config = config_of(temperature=temperature, clip_epsilon=1e-4, **SAMPLING[sampling])
    result = update(make_learner(), config)
    assert result.metrics["ratio/mean"] == 1.0
    assert result.metrics["ratio/max_deviation"] == 0.0
    assert result.metrics["clip_ratio/region_mean"] == 0.0
    mean = sum(row.advantage for row in make_rows()) / 8
    assert result.loss == pytest.approx(-mean, abs=1e-6)
    assert result.gradient_norm > 0


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_M09_the_ratio_to_stored_log_probs_is_one_until_the_weights_move(
    temperature: float, sampling: str
) -> None:
    settings: dict[str, Any] = {
        "temperature": temperature,
        "num_iterations": 2,
        "learning_rate": 1e-2,
        **SAMPLING[sampling],
    }
    learner, config = make_learner(), config_of(**settings)
    batches = [learner.with_logprobs(batch, config) for batch in cut(make_rows(), (4, 4))]
    assert all(row.old_logprobs for batch in batches for row in batch)
    first, second = (learner.update(batches, config, step).metrics for step in (1, 2))
    assert first["ratio/mean"] == pytest.approx(1.0, abs=1e-4)
    assert first["ratio/max_deviation"] == pytest.approx(0.0, abs=1e-4)
    assert second["ratio/max_deviation"] != pytest.approx(0.0, abs=1e-2)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_M09_the_kl_is_zero_until_the_weights_move(
    temperature: float, sampling: str, kind: str
) -> None:
    settings: dict[str, Any] = {
        "temperature": temperature,
        "fine_tune_type": kind,
        "kl_coef": 0.1,
        "learning_rate": 1e-3,
        **SAMPLING[sampling],
    }
    learner, config = make_learner(**settings), config_of(**settings)
    assert update(learner, config).metrics["kl"] == 0.0
    assert update(learner, config, 2).metrics["kl"] > 0.0


# --- what an update teaches


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_M11_an_update_makes_good_completions_likelier_and_bad_ones_less(
    loss_type: str, kind: str
) -> None:
    settings: dict[str, Any] = {
        "fine_tune_type": kind,
        "temperature": 1.0,
        "loss_type": loss_type,
        "learning_rate": 1e-3,
    }
    learner, config = make_learner(**settings), config_of(**settings)

    def likelihoods() -> tuple[float, float]:
        rows = make_rows()
        means = [sum(lps) / len(lps) for lps in logprobs_of(learner, rows, config)]
        pairs = list(zip(rows, means, strict=True))
        good, bad = (
            sum(mean for row, mean in pairs if row.advantage * sign > 0) for sign in (1, -1)
        )
        return good, bad

    good, bad = likelihoods()
    result = update(learner, config)
    assert result.applied
    assert result.gradient_norm > 1e-3
    better, worse = likelihoods()
    assert better > good + 1e-4
    assert worse < bad - 1e-4


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_M11_every_loss_starts_with_the_plain_policy_gradient(loss_type: str) -> None:
    """At a ratio of 1 each is a weighing of the gradients of A·log π, summed here row by row."""
    rows, config = make_rows(), config_of(loss_type=loss_type, max_completion_length=16)
    learner = make_learner(fine_tune_type="full")
    num_tokens = sum(len(row.completion_ids) for row in rows)

    def share(row: TrainingRow) -> float:
        by_row = 1 / (8 * len(row.completion_ids))
        by_token = {"dr_grpo": 1 / (8 * 16), "luspo": 1 / 8}
        by_token |= dict.fromkeys(("bnpo", "dapo", "cispo", "vespo"), 1 / num_tokens)
        return by_token.get(loss_type, by_row)

    def objective(weights: Any) -> mx.array:
        learner.policy.install(weights)
        total = mx.array(0.0)
        for row in rows:
            ids = mx.array([row.prompt_ids + row.completion_ids])
            logits = learner.policy.model(ids[:, :-1])[0] / config.temperature
            logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            chosen = mx.take_along_axis(logprobs, ids[0, 1:, None], axis=-1)
            tokens = chosen[len(row.prompt_ids) - 1 :].sum()
            total = total - row.advantage * share(row) * tokens
        return total

    expected = copy_of(mx.grad(objective)(learner.policy.weights))
    _, found = loss_and_gradient(learner, [rows], config)
    assert largest(expected) > 1e-2
    assert largest_difference(found, expected) < 1e-5 * max(1.0, largest(expected))


def test_the_prompt_counts() -> None:
    rows = make_rows()
    other = [
        TrainingRow([3, *row.prompt_ids[1:]], row.completion_ids, row.advantage) for row in rows
    ]
    norms = [
        make_learner().update([batch], config_of(), 1).gradient_norm for batch in (rows, other)
    ]
    assert norms[0] != pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_entropy_is_that_of_the_sampling_distribution(temperature: float) -> None:
    rows = make_rows()
    config = config_of(temperature=temperature)
    result = make_learner().update([rows[:4], rows[4:]], config, 1)
    total, tokens = 0.0, 0
    model = load_model(str(tiny_model()), lambda message: None).model
    for row in rows:
        ids = row.prompt_ids + row.completion_ids
        logits = model(mx.array([ids[:-1]]))[0] / temperature
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        entropy_T = -(mx.exp(logprobs) * logprobs).sum(axis=-1)
        total += number(entropy_T[len(row.prompt_ids) - 1 :].sum())
        tokens += len(row.completion_ids)
    assert result.metrics["entropy"] == pytest.approx(total / tokens, rel=1e-4)


# --- when nothing may move


@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize(
    "extra", [{}, {"kl_coef": 0.1}, {"entropy_coef": 0.1}], ids=["plain", "kl", "entropy"]
)
def test_M01_without_any_advantage_nothing_moves(kind: str, extra: dict[str, float]) -> None:
    """Neither weight decay, nor the reference, nor the entropy bonus pulls at the weights."""
    settings: dict[str, Any] = {"fine_tune_type": kind, "weight_decay": 0.1, **extra}
    learner = make_learner(**settings)
    weights, model = copy_of(learner.policy.weights), copy_of(learner.policy.model.parameters())
    state = copy_of(learner.optimizer.state)
    flat = [TrainingRow(row.prompt_ids, row.completion_ids, 0.0) for row in make_rows()]
    flat = learner.with_logprobs(flat, config_of(**settings))
    result = learner.update([flat], config_of(**settings), 1)
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
