"""What is reported of an update: TRL's names, token means over the step, extremes over rows."""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_protocol import load_config
from grpo_trainer.objective.row_sums import RowSums
from grpo_trainer.objective.step_loss import step_loss
from grpo_trainer.objective.step_objective import StepObjective
from grpo_trainer.objective.tokens import ScoredTokens, Sums
from grpo_trainer.training_rows import TrainingRow
from grpo_trainer.update_metrics import describe_update
from learners import config_of, copy_of, cut, make_learner, off_policy_rows

Line = list[float]


def gathered(*micro_batches: dict[str, Sums]) -> RowSums:
    sums = RowSums()
    for micro_batch in micro_batches:
        sums.add(micro_batch)
    return sums


def logs(ratios: list[Line]) -> mx.array:
    return mx.log(mx.array(ratios))


def metrics_of(
    ratios: list[Line],
    mask: list[Line],
    advantages: Line,
    rho: list[Line] | None = None,
    **settings: Any,
) -> dict[str, float | None]:
    """Of tokens whose old probability is 1; `rho` is old over sampling probability."""
    new = logs(ratios)
    old = mx.zeros_like(new)
    tokens = ScoredTokens(
        logprobs_B_T=new,
        entropy_B_T=mx.full(new.shape, 2.0),
        old_logprobs_B_T=old,
        sampling_logprobs_B_T=old if rho is None else -logs(rho),
        ref_logprobs_B_T=None,
        advantages_B=mx.array(advantages),
        mask_B_T=mx.array(mask),
    )
    objective = StepObjective(load_config(settings), total_rows=len(ratios), total_tokens=3)
    return describe_update(gathered(step_loss(tokens, objective).sums))


FULL: list[Line] = [[1.0, 1.0], [1.0, 1.0]]
RHO_BEFORE: list[Line] = [[0.5, 1.0], [3.0, 1.0]]


# --- how rows become numbers


def test_means_are_over_all_tokens_and_extremes_over_the_means_of_rows() -> None:
    """Three rows of 4, 1 and 5 tokens in two micro-batches; a mean of means would be 0.57."""
    first = {"clip_ratio/high": Sums(mx.array([2.0, 1.0]), mx.array([4.0, 1.0]))}
    second = {"clip_ratio/high": Sums(mx.array([1.0]), mx.array([5.0]))}
    sums = gathered(first, second)
    assert sums.mean("clip_ratio/high") == pytest.approx(4 / 10)
    assert describe_update(sums) == {
        "clip_ratio/high_mean": pytest.approx(0.4),
        "clip_ratio/high_max": pytest.approx(1.0),
    }
    low = {"clip_ratio/low": first["clip_ratio/high"]}
    assert describe_update(gathered(low))["clip_ratio/low_min"] == pytest.approx(0.5)


def test_a_row_without_tokens_has_no_say() -> None:
    metrics = metrics_of(
        [[1.1, 1.1], [9.0, 9.0]],
        [[1.0, 1.0], [0.0, 0.0]],
        [1.0, 1.0],
        [[2.0, 2.0], [2.0, 2.0]],
        mismatch_correction="token_truncate",
    )
    assert metrics["ratio/mean"] == pytest.approx(1.1)
    assert metrics["ratio/max_deviation"] == pytest.approx(0.1)
    assert metrics["sampling/importance_sampling_ratio/min"] == pytest.approx(2.0)
    assert metrics["entropy"] == pytest.approx(2.0)


# --- each metric


def settings_only(value: Any) -> str:
    """A test's name from its settings; a set of names has no order of its own."""
    return str(value) if isinstance(value, dict) else ""


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_clipped_tokens_are_counted_where_the_clip_acts(loss_type: str) -> None:
    """Low ratios of bad completions, high ones of good; the others keep their gradient."""
    ratios = [[0.5, 1.5], [0.5, 1.0]]
    good = metrics_of(ratios, FULL, [1.0, 1.0], loss_type=loss_type)
    bad = metrics_of(ratios, FULL, [-1.0, -1.0], loss_type=loss_type)

    def clips(metrics: dict[str, float | None]) -> list[float | None]:
        names = ("low_mean", "low_min", "high_mean", "high_max", "region_mean")
        return [metrics[f"clip_ratio/{name}"] for name in names]

    assert clips(good) == pytest.approx([0.0, 0.0, 0.25, 0.5, 0.25])
    assert clips(bad) == pytest.approx([0.5, 0.5, 0.0, 0.0, 0.5])


def test_at_sequence_level_each_row_counts_once() -> None:
    """Whatever its length: mean log-ratios of the rows are log 2 and 0."""
    metrics = metrics_of(
        [[4.0, 1.0], [1.0, 99.0]],
        [[1.0, 1.0], [1.0, 0.0]],
        [1.0, 1.0],
        importance_sampling_level="sequence",
    )
    assert metrics["ratio/mean"] == pytest.approx(1.5)
    assert metrics["ratio/max_deviation"] == pytest.approx(1.0)
    assert metrics["clip_ratio/high_mean"] == pytest.approx(0.5)
    assert metrics["clip_ratio/high_max"] == pytest.approx(1.0)


def test_gmpo_counts_tokens_beyond_its_own_bound() -> None:
    ratios = [[math.exp(0.5), math.exp(0.3)], [math.exp(-0.5), 1.0]]
    metrics = metrics_of(ratios, FULL, [1.0, -1.0], loss_type="gmpo", gmpo_clip=0.4)
    assert metrics["clip_ratio/high_mean"] == pytest.approx(0.25)
    assert metrics["clip_ratio/low_mean"] == pytest.approx(0.25)


def test_cispo_counts_capped_tokens_of_good_completions() -> None:
    metrics = metrics_of([[9.0, 1.0], [9.0, 1.0]], FULL, [1.0, -1.0], loss_type="cispo")
    assert metrics["cispo_clip_ratio"] == pytest.approx(0.25)


def test_vespo_reports_its_mean_weight() -> None:
    """One a row: at w = 1 it is 1, and at w = 2 with A > 0 it is e^3 · 2^2 · e^-6."""
    metrics = metrics_of([[2.0, 1.0], [1.0, 1.0]], FULL, [1.0, -1.0], loss_type="vespo")
    assert metrics["vespo/phi_seq_mean"] == pytest.approx((4 * math.exp(-3) + 1) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ("token_truncate", (0.5, 1.125, 2.0)),
        ("token_mask", (0.0, 0.625, 1.0)),
        ("sequence_truncate", (0.5, 1.25, 2.0)),
        ("sequence_mask", (0.0, 0.25, 0.5)),
    ],
)
def test_the_correction_is_reported_as_it_was_used(
    correction: str, expected: tuple[float, float, float]
) -> None:
    """As it stands ρ is 0.5, 1, 3 and 1 a token, 0.5 and 3 a sequence; the cap is 2."""
    metrics = metrics_of(
        FULL, FULL, [1.0, 1.0], RHO_BEFORE, mismatch_correction=correction, mismatch_max=2.0
    )
    names = ("min", "mean", "max")
    found = [metrics[f"sampling/importance_sampling_ratio/{name}"] for name in names]
    assert found == pytest.approx(expected)


def test_the_difference_to_the_sampler_is_reported_with_and_without_correction() -> None:
    for settings in ({}, {"mismatch_correction": "token_mask"}):
        metrics = metrics_of(FULL, FULL, [1.0, 1.0], RHO_BEFORE, **settings)
        found = [metrics[f"sampling/sampling_logp_difference/{name}"] for name in ("mean", "max")]
        assert found == pytest.approx([(math.log(2) + math.log(3)) / 4, math.log(3)])


# --- of a whole step

ALWAYS = {
    "entropy",
    "ratio/mean",
    "ratio/max_deviation",
    "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max",
    "weight_delta",
}
CLIPS = {f"clip_ratio/{name}" for name in ("low_mean", "low_min", "high_mean", "high_max")}
CLIPS.add("clip_ratio/region_mean")
RHO = {f"sampling/importance_sampling_ratio/{name}" for name in ("min", "mean", "max")}


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({}, CLIPS),
        ({"loss_type": "gmpo"}, CLIPS),
        ({"loss_type": "sapo"}, set()),
        ({"loss_type": "cispo"}, {"cispo_clip_ratio"}),
        ({"loss_type": "vespo"}, {"vespo/phi_seq_mean"}),
        ({"kl_coef": 0.1}, CLIPS | {"kl"}),
        ({"mismatch_correction": "token_truncate"}, CLIPS | RHO),
        ({"entropy_coef": 0.1}, CLIPS | {"entropy_coef", "policy_loss"}),
    ],
    ids=settings_only,
)
def test_a_step_reports_what_its_settings_give_and_nothing_else(
    settings: dict[str, Any], more: set[str]
) -> None:
    learner, config = make_learner(**settings), config_of(**settings)
    rows = off_policy_rows(learner, config)
    if not config.kl_coef:
        rows = [TrainingRow(**{**vars(row), "ref_logprobs": None}) for row in rows]
    metrics = learner.update(cut(rows, (4, 4)), config, 1).metrics
    assert set(metrics) == ALWAYS | more
    assert all(value is not None and math.isfinite(value) for value in metrics.values())


def test_the_weight_delta_is_the_length_of_the_move() -> None:
    learner = make_learner(learning_rate=1e-2)
    before = copy_of(learner.policy.weights)
    result = learner.update([off_policy_rows(learner, config_of())], config_of(), 1)
    after = copy_of(learner.policy.weights)
    squares = [((np.array(after[name]) - np.array(before[name])) ** 2).sum() for name in before]
    assert result.metrics["weight_delta"] == pytest.approx(math.sqrt(sum(squares)), rel=1e-4)


def test_metrics_do_not_depend_on_the_micro_batches() -> None:
    settings: dict[str, Any] = {"kl_coef": 0.1, "clip_epsilon": 0.05}
    settings["mismatch_correction"] = "token_truncate"
    learners = [make_learner(**settings) for _ in range(2)]
    config = config_of(**settings)
    rows = off_policy_rows(learners[0], config)
    whole, split = (
        learner.update(batches, config, 1).metrics
        for learner, batches in zip(learners, ([rows], cut(rows, (3, 1, 4))), strict=True)
    )
    assert split == pytest.approx(whole, abs=1e-5)
    assert whole["clip_ratio/region_mean"] != 0.0
