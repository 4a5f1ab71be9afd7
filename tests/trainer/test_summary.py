"""Means and spreads, and which values differ by more than rounding."""

import pytest

from grpo_trainer.summary import has_spread, known_mean, mean_of, sample_std


def test_mean_and_spread() -> None:
    assert mean_of([0.1] * 10) == 0.1
    assert sample_std([1.0, 2.0, 4.0]) == pytest.approx(1.527525)
    assert (mean_of([]), sample_std([]), sample_std([3.0])) == (0.0, 0.0, 0.0)


def test_the_mean_of_what_is_known() -> None:
    assert known_mean([1.0, None, 2.0]) == 1.5
    assert known_mean([None]) is None
    assert known_mean([]) is None


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None, None],
        [1.0],
        [None, 1.0, None],
        [-7.5] * 4,
        [1.0, None, 1.0],
        [0.1 + 0.2, 0.3, 0.3],
        [0.1 + 0.2 - 0.3, 0.0],
        [1e8 * (0.1 + 0.2), 1e8 * 0.3],
        [-1e8 * (0.1 + 0.2), -1e8 * 0.3],
        [sum([0.1] * 50), 5.0],
    ],
)
def test_equal_values_have_no_spread_whatever_rounding_made_of_them(
    values: list[float | None],
) -> None:
    assert not has_spread(values)


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 1.0],
        [None, 0.0, None, 1.0],
        [1.0, 1.0, 1.0, 0.0],
        [1e8, 1e8 + 1e-5],
        [-1e8, -1e8 + 1e-5],
        [0.0, 1e-9],
        [-1.0, 1.0],
    ],
)
def test_values_that_differ_have_spread_however_small_it_is_among_them(
    values: list[float | None],
) -> None:
    assert has_spread(values)
    assert has_spread(values[::-1])
