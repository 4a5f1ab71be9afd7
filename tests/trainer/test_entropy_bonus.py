"""The entropy bonus, its controller, and training on the tokens of highest entropy alone."""

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_trainer.entropy_bonus import EntropyBonus, EntropyState
from grpo_trainer.learner import Learner
from grpo_trainer.training_rows import TrainingRow
from grpo_trainer.trees import number
from learners import (
    SPLIT_INVARIANT,
    config_of,
    cut,
    largest,
    largest_difference,
    learner_by_position,
    loss_and_gradient,
    make_learner,
    make_rows,
)

LINEAR: dict[str, Any] = {
    "adamw_eps": 1e3,
    "learning_rate": 1e3,
    "weight_decay": 0.0,
    "gradient_clip_norm": None,
}


def entropy_of(learner: Learner, rows: Sequence[TrainingRow], temperature: float = 1.0) -> float:
    """Mean over the completions' tokens, in nats, from the model's own logits."""
    total = []
    for row in rows:
        ids = mx.array([row.prompt_ids + row.completion_ids])
        logits = learner.policy.model(ids[:, :-1])[0, len(row.prompt_ids) - 1 :] / temperature
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        total += [-number((mx.exp(line) * line).sum()) for line in logprobs]
    return sum(total) / len(total)


# --- a fixed bonus


@pytest.mark.parametrize("coef", [0.01, 0.5])
def test_the_bonus_is_the_mean_entropy_times_its_weight(coef: float) -> None:
    learner, rows = make_learner(entropy_coef=coef), make_rows()
    config = config_of(entropy_coef=coef, temperature=0.7)
    found = learner.gradient(cut(rows, (3, 5)), config)
    expected = coef * entropy_of(learner, rows, temperature=0.7)
    assert number(found.policy_loss) - number(found.loss) == pytest.approx(expected, rel=1e-4)
    plain, _ = loss_and_gradient(make_learner(), cut(rows, (3, 5)), config_of(temperature=0.7))
    assert number(found.policy_loss) == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_its_gradient_is_that_of_the_entropy(temperature: float) -> None:
    """For logits z at temperature T it is -p·(log p + H) / T, here at each of three positions."""
    config = config_of(entropy_coef=0.3, temperature=temperature)
    learner = learner_by_position(config)
    table = 3 * mx.random.normal((8, 32), key=mx.random.key(1))
    learner.policy.adopt({"table": table})
    _, gradient = loss_and_gradient(learner, [[TrainingRow([21, 22], [23, 24, 2], 0.0)]], config)
    logits = np.array(table, dtype=np.float64)[1:4] / temperature
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    entropy = -(np.exp(logprobs) * logprobs).sum(axis=1, keepdims=True)
    slope = -np.exp(logprobs) * (logprobs + entropy) / temperature
    found = np.array(gradient["table"])
    assert np.abs(found[1:4] + 0.3 * slope / 3).max() < 1e-6
    assert not found[[0, 4, 5, 6, 7]].any()
    assert np.abs(slope).max() > 0.1


def test_the_bonus_raises_the_entropy_of_the_policy() -> None:
    rows = make_rows()

    def rise(coef: float) -> float:
        settings = {"fine_tune_type": "full", "entropy_coef": coef, **LINEAR}
        learner = make_learner(**settings)
        before = entropy_of(learner, rows)
        assert learner.update([rows], config_of(**settings), 1).applied
        return entropy_of(learner, rows) - before

    assert rise(0.05) > rise(0.0) + 1e-3


def test_the_weight_and_the_loss_without_it_are_reported() -> None:
    config = config_of(entropy_coef=0.2)
    result = make_learner(entropy_coef=0.2).update([make_rows()], config, 1)
    metrics = result.metrics
    assert metrics["entropy_coef"] == 0.2
    assert metrics["policy_loss"] is not None
    assert metrics["entropy"] is not None
    bonus = 0.2 * metrics["entropy"]
    assert result.loss == pytest.approx(metrics["policy_loss"] - bonus, abs=1e-5)


# --- the adaptive bonus

ADAPTIVE: dict[str, Any] = {
    "adaptive_entropy": True,
    "entropy_coef": 0.01,
    "entropy_coef_delta": 0.005,
    "entropy_coef_min": 0.004,
    "entropy_coef_max": 0.02,
    "entropy_target": 0.5,
}


def test_the_weight_moves_by_notches_within_bounds_and_acts_below_the_target_alone() -> None:
    """Each line: entropy of a step, the weight kept after it, the weight of the next step."""
    config = config_of(**ADAPTIVE)
    bonus = EntropyBonus(config)
    assert bonus.weight(config) == 0.0  # nothing has been seen yet
    for entropy, kept, used in [
        (0.6, 0.005, 0.0),
        (0.6, 0.004, 0.0),
        (0.4, 0.009, 0.009),
        (0.5, 0.014, 0.014),
        (0.1, 0.019, 0.019),
        (0.1, 0.020, 0.020),
        (0.1, 0.020, 0.020),
        (0.51, 0.015, 0.0),
        (0.5, 0.020, 0.020),
    ]:
        bonus.observe(entropy, config)
        assert bonus.state.coef == pytest.approx(kept), entropy
        assert bonus.weight(config) == pytest.approx(used), entropy


def test_a_fixed_weight_stays() -> None:
    config = config_of(entropy_coef=0.3)
    bonus = EntropyBonus(config)
    for entropy in (0.0, 5.0):
        bonus.observe(entropy, config)
        assert bonus.weight(config) == 0.3


def test_steps_feed_the_controller_with_their_entropy() -> None:
    """The random model is far above the target of 0.5, and below one of 9."""
    settings = {**ADAPTIVE, "entropy_target": 9.0}
    learner, config = make_learner(**settings), config_of(**settings)
    weights = [learner.update([make_rows()], config, n).metrics["entropy_coef"] for n in (1, 2, 3)]
    assert weights == pytest.approx([0.0, 0.015, 0.02])
    entropy = learner.entropy_bonus.state.last_entropy
    assert entropy is not None
    assert 0.5 < entropy < 9.0
    above = config_of(**ADAPTIVE)
    learner.update([make_rows()], above, 4)
    assert learner.entropy_bonus.weight(above) == 0.0


def test_a_step_that_was_not_made_teaches_the_controller_nothing() -> None:
    settings = {**ADAPTIVE, "entropy_target": 9.0}
    learner, config = make_learner(**settings), config_of(**settings)
    for rows in ([TrainingRow([1], [2], math.nan)], [TrainingRow([1], [2], 0.0)]):
        assert not learner.update([rows], config, 1).applied
        assert learner.entropy_bonus.state == EntropyState(0.01, None)


# --- the tokens of highest entropy

POSITIONS = 12


def uneven_learner(**settings: Any) -> Learner:
    """Position n is the more certain the larger n is: entropies fall from start to end."""
    learner = learner_by_position(config_of(**settings), positions=POSITIONS)
    loudness = mx.arange(POSITIONS)[:, None] * 0.4
    learner.policy.adopt({"table": loudness * mx.random.normal((1, 32), key=mx.random.key(2))})
    return learner


def trained_positions(gradient: dict[str, mx.array]) -> list[int]:
    return np.flatnonzero(np.array(gradient["table"]).any(axis=1)).tolist()


@pytest.mark.parametrize(("share", "kept"), [(0.1, 1), (0.2, 2), (0.5, 5), (0.95, 9), (1.0, 10)])
def test_only_that_share_of_the_tokens_gets_gradient(share: float, kept: int) -> None:
    """Ten tokens at positions 1 to 10; those at or above the quantile are trained on."""
    config = config_of(top_entropy_quantile=share)
    row = TrainingRow([21, 22], list(range(10)), 1.0)
    _, gradient = loss_and_gradient(uneven_learner(), [[row]], config)
    assert trained_positions(gradient) == list(range(1, 1 + kept))


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "cispo", "sapo"])
def test_what_the_tokens_are_divided_by_stays(loss_type: str) -> None:
    """So the gradient of a token that is kept is the same as without the others' masking."""
    row = TrainingRow([21, 22], list(range(10)), 1.0)
    learner = uneven_learner()
    settings: dict[str, Any] = {"loss_type": loss_type, "max_completion_length": 16}
    _, free = loss_and_gradient(learner, [[row]], config_of(**settings))
    _, masked = loss_and_gradient(learner, [[row]], config_of(top_entropy_quantile=0.3, **settings))
    difference = np.abs(np.array(free["table"]) - np.array(masked["table"])).max(axis=1)
    assert trained_positions(masked) == [1, 2, 3]
    assert not difference[:4].any()
    assert difference[4:11].min() > 1e-4


@pytest.mark.parametrize("sizes", [(1, 1), (2,)], ids=str)
def test_the_threshold_is_over_the_whole_step(sizes: tuple[int, ...]) -> None:
    """The short row has the uncertain tokens: of the long one only the first are kept."""
    rows = [
        TrainingRow([21, 22], [1, 2], 1.0),
        TrainingRow([21, 22, 23, 24, 25], [1, 2, 3, 4, 5, 6], -1.0),
    ]
    config = config_of(top_entropy_quantile=0.5)
    _, gradient = loss_and_gradient(uneven_learner(), cut(rows, sizes), config)
    assert trained_positions(gradient) == [1, 2, 4, 5]


@pytest.mark.parametrize("loss_type", SPLIT_INVARIANT)
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_the_mask_does_not_depend_on_the_micro_batches(loss_type: str, share: float) -> None:
    settings: dict[str, Any] = {"fine_tune_type": "full", "entropy_coef": 0.1}
    settings |= {"top_entropy_quantile": share, "max_completion_length": 16}
    learner, rows = make_learner(**settings), make_rows()
    config = config_of(loss_type=loss_type, **settings)
    loss, gradient = loss_and_gradient(learner, [rows], config)
    for sizes in ((1,) * 8, (3, 5)):
        other, split = loss_and_gradient(learner, cut(rows, sizes), config)
        assert other == pytest.approx(loss, abs=1e-5)
        assert largest_difference(gradient, split) <= 1e-5
    assert largest(gradient) > 1e-2


def test_the_bonus_is_the_mean_over_the_kept_tokens() -> None:
    row = TrainingRow([21, 22], list(range(10)), 0.0)
    learner = uneven_learner(entropy_coef=0.3)
    config = config_of(entropy_coef=0.3, top_entropy_quantile=0.2, temperature=1.0)
    loss, gradient = loss_and_gradient(learner, [[row]], config)
    assert loss == pytest.approx(-0.3 * entropy_of(learner, [TrainingRow([21, 22], [0, 1], 0.0)]))
    short = TrainingRow([21, 22], [0, 1], 0.0)
    _, expected = loss_and_gradient(
        learner, [[short]], config_of(entropy_coef=0.3, temperature=1.0)
    )
    assert largest_difference(gradient, expected) < 1e-7
    assert largest(expected) > 1e-3


def test_the_kl_is_not_masked() -> None:
    """Tokens of low entropy are held to the reference as well."""
    settings: dict[str, Any] = {"kl_coef": 0.1, "top_entropy_quantile": 0.2}
    learner = uneven_learner(**settings)
    row = TrainingRow([21, 22], list(range(10)), 1.0, ref_logprobs=[-1.0] * 10)
    _, gradient = loss_and_gradient(learner, [[row]], config_of(**settings))
    assert trained_positions(gradient) == list(range(1, 11))
