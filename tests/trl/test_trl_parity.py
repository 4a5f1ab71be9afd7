"""Loss, gradients, advantages and metrics are those of TRL itself."""

import itertools
import re

import pytest

from .conftest import Sides
from .step_result import StepResult, gradient_difference, total_difference
from .trl_cases import KINDS, Case, advantage_cases, loss_cases, setting_cases

pytestmark = pytest.mark.trl

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
DISTINCT = 10 * GRADIENT_TOLERANCE

CASES = [*loss_cases(), *setting_cases(), *advantage_cases()]
OF_THE_LOSS = re.compile("entropy|kl|(clip_ratio|sampling|vespo)/.*|cispo_clip_ratio")
WITH_METRICS = [
    case
    for case in CASES
    # TRL averages the means of micro-batches. With GDPO its advantages of a flat group are not 0
    # but some rounding, whose sign decides whether a token counts as clipped.
    if case.accumulation == 1 and case.name != "advantages_gdpo-abstaining"
]


def expect_same(ours: StepResult, theirs: StepResult) -> None:
    """Loss and every parameter's gradient."""
    assert ours.loss == pytest.approx(theirs.loss, abs=LOSS_TOLERANCE)
    assert gradient_difference(ours, theirs) < GRADIENT_TOLERANCE


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_and_gradients_are_those_of_trl(case: Case, sides: Sides) -> None:
    ours, theirs = sides.ours(case), sides.theirs(case)
    assert ours.micro_batches == theirs.micro_batches == case.accumulation
    expect_same(ours, theirs)


@pytest.mark.parametrize("case", [*advantage_cases()], ids=str)
def test_advantages_are_those_of_trl(case: Case, sides: Sides) -> None:
    theirs = sides.theirs(case).advantages
    assert any(theirs)
    assert sides.ours(case).advantages == pytest.approx(theirs, abs=LOSS_TOLERANCE)


@pytest.mark.parametrize("case", WITH_METRICS, ids=str)
def test_metrics_are_those_of_trl(case: Case, sides: Sides) -> None:
    ours, theirs = sides.ours(case).metrics, sides.theirs(case).metrics
    expected = {name: value for name, value in theirs.items() if OF_THE_LOSS.fullmatch(name)}
    assert "entropy" in expected
    found = {name: ours[name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_ratios_leave_the_clip_range_on_both_sides(kind: str, sides: Sides) -> None:
    """With ratio 1 most losses coincide, and agreement would say little."""
    cases = {case.name: case for case in CASES if case.kind == kind}
    metrics = sides.theirs(cases["dapo-kl0.1-accumulation1"]).metrics
    assert metrics["clip_ratio/low_mean"] > 0.01
    assert metrics["clip_ratio/high_mean"] > 0.01
    assert metrics["kl"] > 0.01
    assert sides.theirs(cases["cispo-kl0-accumulation1"]).metrics["cispo_clip_ratio"] > 0.01
    sequence = sides.theirs(cases["gspo-kl0-accumulation1"]).metrics
    assert sequence["clip_ratio/region_mean"] > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_makes_a_difference(kind: str, sides: Sides) -> None:
    """In one micro-batch no two cases have the same gradients, but for the two that must."""
    alike = ("bnpo-", "advantages_group-qwen3", "filters-")  # dapo, grpo, dapo
    results = {
        str(case): sides.theirs(case)
        for case in CASES
        if case.kind == kind
        and case.off_policy
        and case.accumulation == 1
        and not str(case).startswith(alike)
    }
    assert len(results) > 25
    for (first, one), (second, other) in itertools.combinations(results.items(), 2):
        assert total_difference(one, other) > DISTINCT, (first, second)
