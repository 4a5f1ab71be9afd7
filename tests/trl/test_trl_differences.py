"""Where the project departs from TRL on purpose, and by what exactly."""

import pytest

from .conftest import Sides
from .step_result import gradient_difference
from .test_trl_parity import DISTINCT, expect_same
from .trl_cases import GROUP_SIZE, PROMPTS, Case
from .trl_differences import (
    CISPO_DEFAULTS,
    FILTERED,
    UNFILTERED,
    masked_cases,
    step_wide_cases,
    window_cases,
)

pytestmark = pytest.mark.trl

BY_TOKENS = ("bnpo", "dapo", "cispo", "vespo")
"""Losses divided by a number of tokens, which masked rows do not add to on either side."""
BY_WINDOW = ("dapo", "cispo", "vespo")


def loss_of(case: Case) -> str:
    return case.name.split("-")[1]


def num_tokens(sides: Sides, case: Case, groups: int) -> int:
    _, rollouts = sides.inputs[case.kind, case.abstains]
    rows = rollouts.completions[: groups * GROUP_SIZE]
    return sum(len(completion.token_ids) for completion in rows)


@pytest.mark.parametrize("case", [*masked_cases()], ids=str)
def test_masked_rows_count_in_trls_means_over_rows_and_not_in_ours(
    case: Case, sides: Sides
) -> None:
    ours, theirs = sides.ours(case), sides.theirs(case)
    kept = sum(advantage is not None for advantage in ours.advantages)
    rows = PROMPTS * GROUP_SIZE
    assert 0 < kept < rows
    expect_same(ours if loss_of(case) in BY_TOKENS else ours.scaled(kept / rows), theirs)


@pytest.mark.parametrize("case", [*window_cases()], ids=str)
def test_trl_divides_by_the_mean_step_of_a_window_and_we_by_this_one(
    case: Case, sides: Sides
) -> None:
    of_step, of_window = num_tokens(sides, case, PROMPTS // 2), num_tokens(sides, case, PROMPTS)
    factor = of_step / (of_window / 2)
    assert abs(factor - 1) > 0.01
    ours = sides.ours(case)
    expect_same(ours.scaled(factor) if loss_of(case) in BY_WINDOW else ours, sides.theirs(case))


@pytest.mark.parametrize(("whole", "accumulated"), [*step_wide_cases()], ids=str)
def test_entropy_is_of_the_whole_step_and_in_trl_of_the_micro_batch(
    whole: Case, accumulated: Case, sides: Sides
) -> None:
    ours = sides.ours(accumulated)
    assert ours.micro_batches == 4
    expect_same(ours, sides.theirs(whole))
    assert gradient_difference(ours, sides.theirs(accumulated)) > DISTINCT


def test_cispo_without_a_cap_is_capped_by_trl_at_epsilon_and_by_us_at_5(sides: Sides) -> None:
    """Where the ratio is 1 TRL's weight is therefore .2."""
    expect_same(sides.ours(CISPO_DEFAULTS).scaled(0.2), sides.theirs(CISPO_DEFAULTS))


def test_trl_leaves_filters_out_of_log_probs_and_we_while_the_ratio_is_1_do_not(
    sides: Sides,
) -> None:
    expect_same(sides.ours(UNFILTERED), sides.theirs(FILTERED))
    assert gradient_difference(sides.ours(FILTERED), sides.theirs(FILTERED)) > DISTINCT
