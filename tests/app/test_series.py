"""Series keep spikes, gaps and order, also when a run goes back."""

import math
from itertools import pairwise

import pytest

from grpo_tui.state.series import Column, Gap, Point, Series


def series_of(*values: float | None) -> Series:
    series = Series()
    for step, value in enumerate(values, start=1):
        series.append(step, value, time=step * 10.0, tokens=step * 100)
    return series


def test_not_finite_values_are_gaps_that_do_not_touch_the_range() -> None:
    series = series_of(1.0, None, math.nan, math.inf, 3.0)
    assert series.values() == [1.0, None, None, None, 3.0]
    assert (series.low, series.high, series.gaps) == (1.0, 3.0, 3)


def test_last_is_none_when_the_newest_value_is_a_gap() -> None:
    assert series_of(1.0, None).last is None
    assert series_of(1.0, 2.0).last == 2.0


def test_decimation_keeps_a_spike() -> None:
    series = Series()
    for step in range(200_000):
        series.append(step, 100.0 if step == 123_456 else 1.0)
    columns = series.columns(80)
    spikes = [column for column in columns if isinstance(column, Column) and column.high == 100.0]
    assert len(columns) == 80
    assert len(spikes) == 1
    assert spikes[0].low == 1.0
    assert spikes[0].last == 1.0


def test_columns_tell_gaps_from_missing_points() -> None:
    series = Series()
    for step, value in ((0, 1.0), (1, None), (9, 4.0)):
        series.append(step, value)
    columns = series.columns(10)
    assert columns[0] == Column(1.0, 1.0, 1.0)
    assert columns[1] == Gap()
    assert columns[2:9] == [None] * 7
    assert columns[9] == Column(4.0, 4.0, 4.0)


def test_columns_take_every_point_once_on_each_axis() -> None:
    series = series_of(*map(float, range(1, 38)))
    for axis, last in (("step", 37), ("time", 370), ("tokens", 3700)):
        columns = series.columns(7, axis=axis)  # type: ignore[arg-type]
        finite = [column for column in columns if isinstance(column, Column)]
        assert finite[0].low == 1.0
        assert finite[-1].last == 37.0
        assert all(a.high < b.low for a, b in pairwise(finite))
        assert series.extent(axis)[1] == last  # type: ignore[arg-type,index]


def test_one_point_fills_one_column() -> None:
    columns = series_of(2.5).columns(5)
    assert [column for column in columns if column] == [Column(2.5, 2.5, 2.5)]


def test_window_leaves_out_what_is_outside() -> None:
    columns = series_of(1.0, 50.0, 2.0, 3.0).columns(2, 3, 4)
    assert columns == [Column(2.0, 2.0, 2.0), Column(3.0, 3.0, 3.0)]


def test_smoothing_is_an_exponential_mean_that_skips_gaps() -> None:
    series = series_of(1.0, None, 2.0)
    smooth = series.smoothed(0.6)
    assert smooth[0] == 1.0
    assert math.isnan(smooth[1])
    assert smooth[2] == pytest.approx(0.6 * 1.0 + 0.4 * 2.0)
    series.append(4, 2.0)
    assert series.smoothed(0.6)[3] == pytest.approx(0.6 * 1.4 + 0.4 * 2.0)


def test_smoothing_forgets_what_was_taken_back() -> None:
    series = series_of(1.0, 100.0)
    assert series.smoothed(0.5)[1] == 50.5
    series.append(2, 3.0)
    assert list(series.smoothed(0.5)) == [1.0, 2.0]


def test_trend_needs_more_than_the_threshold() -> None:
    assert series_of(*[1.0] * 10, *[1.00005] * 10).trend() == 0
    assert series_of(*[1.0] * 10, *[1.1] * 10).trend() == 1
    assert series_of(*[1.0] * 10, *[0.9] * 10).trend() == -1
    assert series_of(1.0).trend() == 0


def test_a_step_done_again_replaces_what_followed() -> None:
    series = series_of(1.0, 9.0, 3.0)
    series.append(2, 2.0)
    assert [(point.step, point.value) for point in series.points()] == [(1, 1.0), (2, 2.0)]
    assert series.high == 2.0


def test_merge_adds_only_unknown_steps_in_order() -> None:
    series = Series()
    series.append(3, 3.0)
    series.merge([Point(1, 1.0), Point(3, 99.0), Point(2, None)])
    assert [(point.step, point.value) for point in series.points()] == [
        (1, 1.0),
        (2, None),
        (3, 3.0),
    ]
    assert series.gaps == 1


def test_best_is_the_first_of_equal_values() -> None:
    best = series_of(0.5, 0.9, None, 0.9).best()
    assert best is not None
    assert best.step == 2


def test_empty_series_answers_everything() -> None:
    series = Series()
    assert series.last is None
    assert series.columns(3) == [None, None, None]
    assert series.trend() == 0
    assert series.best() is None
    assert series.nearest(5) is None


def test_nearest_point_is_the_last_one_before() -> None:
    series = series_of(1.0, 2.0, 3.0)
    nearest = series.nearest(2.7)
    assert nearest is not None
    assert nearest.step == 2
