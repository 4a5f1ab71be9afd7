"""The chart as text: axes, ticks, gaps, zoom, cursor, scales, marks."""

import math
import random
from collections.abc import Sequence

import pytest

from grpo_tui.drawing.chart_frame import ChartData, ChartView, draw_chart
from grpo_tui.drawing.chart_scale import Range, range_of, ticks, window
from grpo_tui.drawing.formatting import memory, percent
from grpo_tui.drawing.glyphs import ASCII, UNICODE, Glyphs
from grpo_tui.state.run_model import Mark
from grpo_tui.state.series import Series

HOSTILE: Sequence[Sequence[float | None]] = (
    [],
    [1.0],
    [None],
    [math.nan, math.nan],
    [math.inf, 1.0, 2.0],
    [1.0, None, 3.0, -math.inf, 5.0],
    [0.0, 0.0, 0.0],
    [-1.0, -2.0],
    [1e308, -1e308, 0.0],
    [1.7e308] * 5,
    [5e-324, 0.0],
    [1e-300, 1e300],
)
WHOLE = ChartView()
VIEWS = (
    ChartView(),
    ChartView(log=True),
    ChartView(zoom=3, cursor=2, smoothing=0.9),
    ChartView(zoom=12, cursor=99, log=True, smoothing=0.99),
)


def series_of(values: Sequence[float | None]) -> Series:
    series = Series()
    for step, value in enumerate(values, start=1):
        series.append(step, value, time=1000.0 + 2 * step, tokens=100 * step)
    return series


def draw(
    values: Sequence[float | None],
    view: ChartView = WHOLE,
    size: tuple[int, int] = (60, 12),
    glyphs: Glyphs = ASCII,
    **data: object,
) -> list[str]:
    chart = ChartData(series_of(values), **data)  # type: ignore[arg-type]
    return [line.plain for line in draw_chart(chart, view, *size, glyphs)]


@pytest.mark.parametrize("values", HOSTILE)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_any_values_at_any_size_stay_inside_the_frame(
    values: Sequence[float | None], view: ChartView, glyphs: Glyphs
) -> None:
    for size in ((0, 0), (1, 1), (7, 3), (9, 6), (60, 12), (200, 3), (3, 50)):
        lines = draw_chart(ChartData(series_of(values)), view, *size, glyphs)
        assert len(lines) <= size[1]
        assert all(line.cell_length <= size[0] for line in lines)


def test_w37_axes_carry_real_values_and_a_rising_series_rises() -> None:
    lines = draw([0.1 * n for n in range(11)])
    labels = [line.split("+")[0].strip() for line in lines[:9] if "+" in line[:6]]
    assert [float(label) for label in labels] == [1.0, 0.5, 0.0]
    assert lines[0].rstrip().endswith("*")
    assert lines[8].lstrip(" 0.+|").startswith("*")


def test_y_axis_has_the_unit_of_the_metric() -> None:
    assert "50%" in "\n".join(draw([0.0, 1.0], format_y=percent))
    assert "2G" in "\n".join(draw([1000.0, 3000.0], format_y=memory))


def test_x_axis_is_labelled_with_steps() -> None:
    lines = draw([1.0, 2.0] * 50, size=(80, 12))
    assert [float(label) for label in lines[-2].split()] == [20, 40, 60, 80, 100]


def test_value_that_was_not_finite_breaks_the_line_and_is_marked() -> None:
    lines = draw([1.0] * 10 + [None] * 10 + [1.0] * 10)
    gap = lines[-4].index("!")
    middle = next(line for line in lines if "**" in line)
    assert middle[gap] == " "
    assert "10 not finite" in lines[-1]


def test_spike_among_thousands_of_points_is_drawn() -> None:
    values = [0.0] * 5000
    values[2500] = 1.0
    assert "*" in draw(values)[0]


def test_zoom_shows_the_newest_part_or_the_part_around_the_cursor() -> None:
    values = [float(n) for n in range(1, 101)]
    newest = draw(values, ChartView(zoom=2))
    assert "80" in newest[-2]
    assert "20" not in newest[-2]
    around = draw(values, ChartView(zoom=2, cursor=30))
    assert "30" in around[-2]
    assert "80" not in around[-2]


def test_cursor_reads_value_mean_and_mark_of_its_step() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    marks = [Mark(3, "checkpoint", "checkpoint-3")]
    readout = draw(values, ChartView(cursor=3, smoothing=0.6), marks=marks)[-1]
    assert readout.startswith("step 3: 3.00")
    assert "EMA" in readout
    assert "checkpoint-3" in readout


def test_cursor_on_a_gap_says_so() -> None:
    assert "! not finite" in draw([1.0, None, 2.0], ChartView(cursor=2))[-1]


def test_marks_stand_on_the_x_axis_at_their_step() -> None:
    axis = draw([1.0] * 101, marks=[Mark(51, "restart", ""), Mark(101, "checkpoint", "")])[-3]
    assert axis.endswith("C")
    assert abs(axis.index("R") - (axis.index("+") + len(axis)) // 2) <= 2


def test_log_scale_spaces_powers_evenly_and_hides_what_is_not_above_zero() -> None:
    lines = draw([1.0, 10.0, 100.0, 1000.0], ChartView(log=True), size=(40, 13))
    rows = [row for row, line in enumerate(lines[:10]) if line.split("+")[0].strip()]
    labels = [lines[row].split("+")[0].strip() for row in rows]
    assert labels[0] == "1k"
    assert labels[-1] == "1"
    assert "without values below 0" in draw([-1.0, 1.0, 10.0], ChartView(log=True))[-1]
    assert "log scale" in draw([-1.0, -2.0], ChartView(log=True))[0]


def test_smoothing_is_drawn_over_the_raw_values() -> None:
    rng = random.Random(3)
    values = [rng.random() for _ in range(200)]
    smooth = "\n".join(draw(values, ChartView(smoothing=0.99)))
    assert "." in smooth
    assert "*" in smooth


def test_time_and_token_axes_place_the_same_points() -> None:
    for axis in ("time", "tokens"):
        lines = draw([1.0, 2.0, 3.0], ChartView(cursor=2), axis=axis)
        assert axis in lines[-1]
        assert "*" in "".join(lines)


def test_ticks_are_round_and_inside() -> None:
    assert ticks(Range(0, 1), 5) == [0, 0.25, 0.5, 0.75, 1.0]
    for span in (Range(0.31, 0.77), Range(-5, 12345), Range(-1e308, 1e308), Range(1, 1.0001)):
        for count in (1, 2, 5, 9):
            values = ticks(span, count)
            assert len(values) <= count
            assert all(span.low - 1e-9 <= value <= span.high + 1e-9 for value in values)


def test_constant_values_get_a_range_around_them() -> None:
    span = range_of([3.0, 3.0])
    assert span is not None
    assert span.low < 3.0 < span.high
    assert range_of([math.nan]) is None


def test_window_never_leaves_the_whole() -> None:
    full = Range(0, 100)
    for zoom in range(6):
        for center in (None, -50.0, 0.0, 40.0, 500.0):
            part = window(full, zoom, center)
            assert 0 <= part.low < part.high <= 100
