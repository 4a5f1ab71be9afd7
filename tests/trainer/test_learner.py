"""One optimizer step: what gets gradient, how it adds up, and when the weights must not move."""

import math
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map

from grpo_protocol import GRPOConfig
from grpo_trainer.learner import (
    Learner,
    TrainingRow,
    _objective,
    _to_tensors,
    clip_gradients,
    learning_rate_of,
    score_tokens,
)
from grpo_trainer.model_source import load_model
from grpo_trainer.policy import Policy
from grpo_trainer.rollout import SamplingOptions, decode_greedily
from grpo_trainer.trees import leaves, number
from learners import (
    EOS,
    are_identical,
    config_of,
    copy_of,
    largest_difference,
    make_learner,
    make_rows,
)
from tiny_model import tiny_model

LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo"]
# With so large an epsilon AdamW moves weights in proportion to the gradient, as SGD does, so that
# rounding in a gradient near 0 cannot become a whole step.
LINEAR: dict[str, Any] = {
    "adamw_eps": 1e3,
    "learning_rate": 1.0,
    "weight_decay": 0.0,
    "gradient_clip_norm": None,
}


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


class ByPosition(nn.Module):  # type: ignore[misc, name-defined]
    """A model whose logits depend on the position alone: each has weights of its own."""

    def __init__(self, positions: int = 8, vocabulary: int = 32) -> None:
        super().__init__()
        self.table = 0.01 * mx.random.normal((positions, vocabulary), key=mx.random.key(0))

    def __call__(self, ids: mx.array) -> mx.array:
        batch, length = ids.shape
        return mx.broadcast_to(self.table[:length], (batch, length, self.table.shape[1]))


def learner_by_position(config: GRPOConfig) -> Learner:
    model = ByPosition()
    policy = Policy(model, None, "full", None, dict(model.trainable_parameters()))  # type: ignore[arg-type]
    return Learner(policy, config)


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


# --- AdamW


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


def test_small_steps_are_not_lost_in_a_bfloat16_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 AdamW steps at 1e-6 under a constant gradient move every master weight by 1e-4."""
    settings: dict[str, Any] = {
        "fine_tune_type": "full",
        "dtype": "bfloat16",
        "learning_rate": 1e-6,
        "weight_decay": 0.0,
        "gradient_clip_norm": None,
    }
    learner = make_learner(**settings)
    policy = learner.policy
    assert {w.dtype for _, w in leaves(policy.model.parameters())} == {mx.bfloat16}
    before = copy_of(policy.weights)
    assert {w.dtype for w in before.values()} == {mx.float32}
    rows, config = make_rows()[:2], config_of(**settings)
    loss, gradients, sums = learner._accumulate([rows], _objective(config, 2, 3, 1), 1.0)
    constant = tree_map(mx.ones_like, gradients)
    monkeypatch.setattr(learner, "_accumulate", lambda *_: (loss, constant, sums))
    for step in range(1, 101):
        assert learner.update([rows], config, step).applied
    after = copy_of(policy.weights)
    for name in before:
        error = mx.abs(before[name] - after[name] - 1e-4)
        # Above 1 the steps of float32 itself are 12 % of 1e-6.
        is_small = mx.maximum(mx.abs(before[name]), mx.abs(after[name])) <= 1
        assert number(mx.where(is_small, error, 0).max()) < 2e-6, name
        assert number(error.max()) < 7e-6, name

    installed = copy_of(policy.model.parameters())
    rounded = {name: weight.astype(mx.bfloat16) for name, weight in after.items()}
    assert are_identical(installed, rounded)
    moved_bits = sum(
        number((installed[n] != before[n].astype(mx.bfloat16)).sum()) for n in installed
    )
    assert moved_bits > 0.05 * policy.num_trainable
    fresh = load_model(str(tiny_model("qwen3", "bfloat16")), lambda message: None).model
    sampling = SamplingOptions(16, 1.0, frozenset())
    fresh.load_weights(list(rounded.items()))
    prompts = [row.prompt_ids for row in make_rows()[::4]]
    assert decode_greedily(policy.model, prompts, sampling) == decode_greedily(
        fresh, prompts, sampling
    )
    ids = mx.array([[1, 2, 3]])
    assert mx.array_equal(policy.model(ids), fresh(ids)).item()
