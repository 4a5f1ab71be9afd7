"""Means and spreads."""

import pytest

from grpo_trainer.summary import known_mean, mean_of, sample_std


def test_mean_and_spread() -> None:
    assert mean_of([0.1] * 10) == 0.1
    assert sample_std([1.0, 2.0, 4.0]) == pytest.approx(1.527525)
    assert (mean_of([]), sample_std([]), sample_std([3.0])) == (0.0, 0.0, 0.0)


def test_the_mean_of_what_is_known() -> None:
    assert known_mean([1.0, None, 2.0]) == 1.5
    assert known_mean([None]) is None
    assert known_mean([]) is None
