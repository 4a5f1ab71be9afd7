"""Every loss with every correction, against the same formulas token by token in float64."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_protocol import GRPOConfig, load_config
from grpo_trainer.objective.corrections import mismatch_weights
from grpo_trainer.objective.entropy_mask import linear_quantile
from grpo_trainer.objective.step_loss import step_loss
from grpo_trainer.objective.step_objective import StepObjective
from grpo_trainer.objective.tokens import ScoredTokens
from grpo_trainer.trees import number
from plain_objective import PlainRow, gradient_by_differences, padded, plain_loss, random_rows

LOSSES: dict[str, dict[str, Any]] = {
    **{name: {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")},
    "grpo-delta": {"loss_type": "grpo", "delta": 1.4},
    "cispo": {"loss_type": "cispo", "clip_epsilon_high": 1.2},
    "sapo": {"loss_type": "sapo", "sapo_temperature_pos": 0.8, "sapo_temperature_neg": 1.3},
    "vespo": {
        "loss_type": "vespo",
        "vespo_k_pos": 1.5,
        "vespo_lambda_pos": 2.5,
        "vespo_k_neg": 2.0,
        "vespo_lambda_neg": 1,
    },
    "gmpo": {"loss_type": "gmpo", "gmpo_clip": 0.3},
}
CLIPPED = ("grpo", "grpo-delta", "bnpo", "dr_grpo", "dapo", "luspo")
FIXED_LEVEL = ("luspo", "gmpo", "vespo")
LEVELS = [
    (name, level)
    for name in LOSSES
    for level in ([None] if name in FIXED_LEVEL else ["token", "sequence"])
]
KL: dict[str, dict[str, Any]] = {
    "no-kl": {},
    "kl": {"kl_coef": 0.3},
    "kl-corrected": {"kl_coef": 0.3, "kl_bias_correction": True},
}
BOUNDS = {"mismatch_min": 0.8, "mismatch_max": 1.25}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    **{
        f"{level}_{mode}": {"mismatch_correction": f"{level}_{mode}", **BOUNDS}
        for level in ("token", "sequence")
        for mode in ("truncate", "mask")
    },
}
OFF_POLICY = {"off_policy_mask_threshold": 0.25}

ROWS = random_rows(3, [2, 4, 1, 3, 4, 3])
BATCHES = [ROWS[:3], ROWS[3:]]
NUM_TOKENS = sum(len(row.new) for row in ROWS)
WIDTH = 6
THRESHOLD = 1.2


def objective_of(
    name: str, level: str | None = None, *, masks_entropy: bool = False, **settings: Any
) -> StepObjective:
    if name in CLIPPED:
        settings = {"clip_epsilon": 0.1, "clip_epsilon_high": 0.15, **settings}
    config = load_config(
        {
            **LOSSES[name],
            "importance_sampling_level": level,
            "max_completion_length": 6,
            **settings,
        }
    )
    return StepObjective(
        config=config,
        total_rows=len(ROWS),
        total_tokens=NUM_TOKENS,
        num_micro_batches=len(BATCHES),
        entropy_threshold=THRESHOLD if masks_entropy else None,
    )


def arrays(config: GRPOConfig) -> list[ScoredTokens]:
    return [padded(batch, WIDTH, with_ref=bool(config.kl_coef)) for batch in BATCHES]


def value_and_gradient(objective: StepObjective) -> tuple[float, list[list[float]]]:
    """Of the step's loss in the log-probs of each row's own tokens; all others must have none."""
    value, slopes = 0.0, []
    for batch, tokens in zip(BATCHES, arrays(objective.config), strict=True):

        def loss(new: mx.array, tokens: ScoredTokens = tokens) -> mx.array:
            return step_loss(tokens._replace(logprobs_B_T=new), objective).loss

        part, slope = mx.value_and_grad(loss)(tokens.logprobs_B_T)
        value += number(part)
        found, mask = np.array(slope), np.array(tokens.mask_B_T) == 1
        assert not found[~mask].any()
        slopes += [line[inside].tolist() for line, inside in zip(found, mask, strict=True)]
        assert [len(line) for line in slopes[-len(batch) :]] == [len(row.new) for row in batch]
    return value, slopes


def plain_gradient(objective: StepObjective) -> Iterator[list[float]]:
    """The same by central differences of the plain objective."""
    for b, batch in enumerate(BATCHES):
        for r, row in enumerate(batch):

            def loss(changed: PlainRow, b: int = b, r: int = r) -> float:
                batches = [list(each) for each in BATCHES]
                batches[b][r] = changed
                return plain_loss(batches, objective, frozen=BATCHES)

            yield gradient_by_differences(loss, row)


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("kl", KL)
@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_value_and_gradient_equal_the_plain_formulas(
    name: str, level: str | None, kl: str, correction: str
) -> None:
    settings = {**KL[kl], **CORRECTIONS[correction]}
    for masks_entropy, off_policy in itertools.product([False, True], [{}, OFF_POLICY]):
        objective = objective_of(name, level, masks_entropy=masks_entropy, **settings, **off_policy)
        value, gradient = value_and_gradient(objective)
        assert value == pytest.approx(plain_loss(BATCHES, objective), abs=1e-5, rel=1e-5)
        for found, expected in zip(gradient, plain_gradient(objective), strict=True):
            assert found == pytest.approx(expected, abs=1e-5, rel=1e-4)


def test_the_random_rows_reach_every_branch() -> None:
    """Otherwise the comparison above would say little."""

    def means(log_ratios: Sequence[list[float]]) -> list[float]:
        return [math.exp(sum(logs) / len(logs)) for logs in log_ratios]

    logs = [[n - o for n, o in zip(row.new, row.old, strict=True)] for row in ROWS]
    for sign in (1, -1):
        signed = [ls for ls, row in zip(logs, ROWS, strict=True) if row.advantage * sign > 0]
        tokens = [math.exp(log) for ls in signed for log in ls]
        assert min(tokens) < math.exp(-0.3)
        assert max(tokens) > 1.4
        assert any(0.9 < ratio < 1.15 for ratio in tokens)
        assert min(means(signed)) < 0.9
        assert max(means(signed)) > 1.15
    rho = [[o - s for o, s in zip(row.old, row.sampling, strict=True)] for row in ROWS]
    for weights in ([math.exp(r) for row in rho for r in row], [math.exp(sum(r)) for r in rho]):
        assert min(weights) < 0.8
        assert max(weights) > 1.25
        assert any(0.8 < weight < 1.25 for weight in weights)
    drifts = [
        sum(s - n for s, n in zip(row.sampling, row.new, strict=True)) / len(row.new)
        for row in ROWS
        if row.advantage < 0
    ]
    assert min(drifts) < 0.25 < max(drifts)
    entropies = [h for row in ROWS for h in row.entropy]
    assert 0.2 < sum(h >= THRESHOLD for h in entropies) / len(entropies) < 0.8


# --- single tokens


def one_token(
    new: float,
    old: float,
    advantage: float,
    objective: StepObjective,
    ref: float = 0.0,
    sampling: float = 0.0,
) -> tuple[float, float]:
    """The loss of one token and its slope."""

    def loss(x: mx.array) -> mx.array:
        tokens = ScoredTokens(
            logprobs_B_T=x,
            entropy_B_T=mx.ones_like(x),
            old_logprobs_B_T=mx.array([[old]]),
            sampling_logprobs_B_T=mx.array([[sampling]]),
            ref_logprobs_B_T=mx.array([[ref]]) if objective.config.kl_coef else None,
            advantages_B=mx.array([advantage]),
            mask_B_T=mx.array([[1.0]]),
        )
        return step_loss(tokens, objective).loss

    value, slope = mx.value_and_grad(loss)(mx.array([[new]]))
    return number(value), number(slope)


def objective_of_one(**settings: Any) -> StepObjective:
    return StepObjective(load_config(settings), total_rows=1, total_tokens=1)


def test_the_clip_is_pessimistic() -> None:
    """A bad action that became likelier is pushed down with its full ratio; a good one is not."""
    objective = objective_of_one(loss_type="dapo", clip_epsilon_high=0.28)
    assert one_token(-0.5, -1.0, 1.0, objective)[1] == 0.0
    assert one_token(-1.5, -1.0, -1.0, objective)[1] == 0.0
    assert one_token(-0.5, -1.0, -1.0, objective)[1] == pytest.approx(math.exp(0.5), rel=1e-5)
    assert one_token(-1.5, -1.0, 1.0, objective)[1] == pytest.approx(-math.exp(-0.5), rel=1e-5)


def test_delta_caps_the_ratio_that_the_clip_leaves_free() -> None:
    objective = objective_of_one(delta=4.0)
    assert one_token(-0.5, -1.0, -1.0, objective)[1] == pytest.approx(math.exp(0.5), rel=1e-5)
    value, slope = one_token(-0.5, -2.0, -1.0, objective)
    assert value == pytest.approx(4.0)
    assert slope == 0.0


def test_the_cap_of_cispo_is_5_unless_said_otherwise() -> None:
    """It keeps the gradient of a capped token, at the weight of the cap."""
    objective = objective_of_one(loss_type="cispo")
    assert one_token(-0.5, -1.5, 1.0, objective)[1] == pytest.approx(-math.e, rel=1e-5)
    assert one_token(-0.5, -3.5, 1.0, objective)[1] == pytest.approx(-5.0, rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("what", ["old", "ref", "sampling"])
@pytest.mark.parametrize("far", [-201.0, 200.0])
def test_log_probs_that_are_worlds_apart_give_finite_numbers(
    name: str, what: str, far: float
) -> None:
    """Their ratio, e^200, is beyond float32."""
    correction = "token_mask" if far < 0 else "token_truncate"
    settings = {**LOSSES[name], "kl_coef": 0.1, "mismatch_correction": correction}
    for advantage in (1.0, -1.0):
        values = {"old": -1.0, "ref": -1.0, "sampling": -1.0, what: far}
        value, slope = one_token(
            -1.0, advantage=advantage, objective=objective_of_one(**settings), **values
        )
        assert math.isfinite(value)
        assert math.isfinite(slope)


def test_the_kl_is_never_negative_and_pulls_towards_the_reference() -> None:
    objective = objective_of_one(kl_coef=1.0)
    for ref in (-3.0, -1.0 - 1e-4, -1.0, -1.0 + 1e-4, -0.2):
        value, slope = one_token(-1.0, -1.0, 0.0, objective, ref=ref)
        assert value >= 0
        assert slope == pytest.approx(1 - math.exp(ref + 1), abs=1e-6)
    assert one_token(-1.0, -1.0, 0.0, objective, ref=-1.0) == (0.0, 0.0)


def test_a_masked_token_costs_no_term_of_its_row() -> None:
    """MIS by token drops one token; by sequence it drops the row, padding left alone."""
    rows = [PlainRow([-1.0] * 3, [-1.0] * 3, [-1.0, -3.0, -1.0], [], [1.0] * 3, 1.0)]
    tokens = padded(rows, 3, with_ref=False)
    by_token = load_config({"mismatch_correction": "token_mask"})
    by_row = load_config({"mismatch_correction": "sequence_mask"})
    for config, expected in ((by_token, [[1.0, 0.0, 1.0]]), (by_row, [[0.0]])):
        weights = mismatch_weights(tokens, config)
        assert weights is not None
        assert weights.tolist() == expected


@pytest.mark.parametrize("proportion", [0.0, 0.2, 0.5, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_quantiles_are_interpolated_linearly(proportion: float, size: int) -> None:
    values = np.random.default_rng(size).normal(size=size).astype(np.float32)
    expected = np.quantile(values, proportion, method="linear")
    assert linear_quantile(mx.array(values), proportion) == pytest.approx(expected, abs=1e-6)
