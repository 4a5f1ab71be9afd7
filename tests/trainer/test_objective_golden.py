"""The objective in numbers that TRL's own `_compute_loss` gives for the same two completions.

Rewards 1 and 0, two and three tokens, no accumulation. TRL and the objective here must agree on
value, gradient and metrics.
"""

from typing import Any

import mlx.core as mx
import pytest

from grpo_protocol import load_config
from grpo_trainer.objective.row_sums import RowSums
from grpo_trainer.objective.step_loss import MicroBatchLoss, step_loss
from grpo_trainer.objective.step_objective import StepObjective
from grpo_trainer.objective.tokens import ScoredTokens
from grpo_trainer.trees import number
from grpo_trainer.update_metrics import describe_update

NEW = [[-1.0, -0.5, 0.0], [-2.0, -1.0, -0.7]]
OLD = [[-1.3, -0.6, 0.0], [-1.8, -0.9, -1.2]]
REF = [[-1.1, -0.4, 0.0], [-2.2, -0.8, -0.9]]
MASK = [[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
ADVANTAGES = [0.707007, -0.707007]

GSPO = [-0.215885] * 2 + [0.125958] * 3
TOKEN_MEAN = [0, -0.156273, 0.115770, 0.127945, 0.233131]

GOLDEN: list[tuple[dict[str, Any], float, list[float]]] = [
    ({"loss_type": "grpo"}, -0.024211, [0, -0.195341, 0.096475, 0.106621, 0.194276]),
    ({"loss_type": "bnpo"}, 0.139580, TOKEN_MEAN),
    ({"loss_type": "dapo"}, 0.139580, TOKEN_MEAN),
    ({"loss_type": "dr_grpo"}, 0.087237, [0, -0.097670, 0.072356, 0.079966, 0.145707]),
    ({"kl_coef": 0.1}, -0.022980, [0.002379, -0.197970, 0.099496, 0.102931, 0.197297]),
    (
        {"kl_coef": 0.1, "kl_bias_correction": True},
        -0.022812,
        [0.003375, -0.198104, 0.099204, 0.103605, 0.199772],
    ),
    ({"delta": 1.5}, -0.041736, [0, -0.195341, 0.096475, 0.106621, 0]),
    ({"importance_sampling_level": "sequence"}, -0.053896, GSPO),
    ({"loss_type": "luspo"}, 0.270081, [-0.431770] * 2 + [0.377874] * 3),
    (
        {"loss_type": "cispo", "clip_epsilon_high": 1.3},
        -0.226202,
        [-0.183822, -0.156273, 0.115770, 0.127945, 0.183822],
    ),
    ({"loss_type": "sapo"}, -0.072337, [-0.231435, -0.194802, 0.095606, 0.106355, 0.173376]),
    ({"loss_type": "vespo"}, -0.504301, [-0.071961] * 2 + [0.165471] * 3),
    ({"loss_type": "gmpo"}, -0.053896, GSPO),
]
NAMES = ["-".join(map(str, settings.values())) for settings, _, _ in GOLDEN]
OWN_BOUNDS = ("cispo", "sapo", "vespo", "gmpo")


def golden_loss(new_B_T: mx.array, settings: dict[str, Any]) -> MicroBatchLoss:
    """The loss of both rows in one micro-batch."""
    if settings.get("loss_type") not in OWN_BOUNDS:
        settings = {"clip_epsilon_high": 0.28, **settings}
    config = load_config({"clip_epsilon": 0.2, "max_completion_length": 4, **settings})
    tokens = ScoredTokens(
        logprobs_B_T=new_B_T,
        entropy_B_T=mx.ones_like(new_B_T),
        old_logprobs_B_T=mx.array(OLD),
        sampling_logprobs_B_T=mx.array(OLD),
        ref_logprobs_B_T=mx.array(REF) if config.kl_coef else None,
        advantages_B=mx.array(ADVANTAGES),
        mask_B_T=mx.array(MASK),
    )
    return step_loss(tokens, StepObjective(config, total_rows=2, total_tokens=5))


def metrics_of(**settings: Any) -> dict[str, float | None]:
    sums = RowSums()
    sums.add(golden_loss(mx.array(NEW), settings).sums)
    return describe_update(sums)


@pytest.mark.parametrize(("settings", "value", "gradient"), GOLDEN, ids=NAMES)
def test_value_and_gradient_are_those_of_trl(
    settings: dict[str, Any], value: float, gradient: list[float]
) -> None:
    loss, slope = mx.value_and_grad(lambda new: golden_loss(new, settings).loss)(mx.array(NEW))
    assert number(loss) == pytest.approx(value, abs=1e-5)
    rows = slope.tolist()
    assert rows[0][:2] + rows[1] == pytest.approx(gradient, abs=1e-5)
    assert rows[0][2] == 0.0


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_clip_metrics_are_those_of_trl(loss_type: str) -> None:
    metrics = metrics_of(loss_type=loss_type)
    expected = {"high_mean": 0.2, "region_mean": 0.2, "low_mean": 0.0, "high_max": 0.5}
    for name, value in {**expected, "low_min": 0.0}.items():
        assert metrics[f"clip_ratio/{name}"] == pytest.approx(value, abs=1e-6), name
    ratios = [1.349859, 1.105171, 0.818731, 0.904837, 1.648721]
    assert metrics["ratio/mean"] == pytest.approx(sum(ratios) / 5, abs=1e-5)
    assert metrics["ratio/max_deviation"] == pytest.approx(0.648721, abs=1e-5)


def test_the_ratio_of_a_sequence_is_that_of_trl() -> None:
    for settings in ({"importance_sampling_level": "sequence"}, {"loss_type": "luspo"}):
        metrics = metrics_of(**settings)
        assert metrics["ratio/mean"] == pytest.approx((1.221403 + 1.068939) / 2, abs=1e-5)
        assert metrics["ratio/max_deviation"] == pytest.approx(0.221403, abs=1e-5)


def test_cispo_counts_capped_tokens_as_trl_does() -> None:
    metrics = metrics_of(loss_type="cispo", clip_epsilon_high=1.3)
    assert metrics["cispo_clip_ratio"] == pytest.approx(0.2, abs=1e-6)
    assert "clip_ratio/high_mean" not in metrics


def test_mean_kl_is_that_of_trl() -> None:
    assert metrics_of(kl_coef=0.1)["kl"] == pytest.approx(0.0137745, abs=1e-6)
    assert "kl" not in metrics_of()


def test_mean_kl_contains_the_bias_correction_as_in_trl() -> None:
    """Divergences of the five tokens times their ratios."""
    divergences = [0.0048374, 0.0051709, 0.0187308, 0.0214028, 0.0187308]
    ratios = [1.349859, 1.105171, 0.818731, 0.904837, 1.648721]
    expected = sum(kl * ratio for kl, ratio in zip(divergences, ratios, strict=True)) / 5
    metrics = metrics_of(kl_coef=0.1, kl_bias_correction=True)
    assert metrics["kl"] == pytest.approx(expected, abs=1e-6)
