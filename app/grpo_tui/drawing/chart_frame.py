"""One chart with axes as lines of text, from a series and a view; no widget, no state.

From top to bottom: the plot with its y axis, the x axis with event marks, x labels, a read-out.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from textual.content import Content

from grpo_tui.drawing.chart_raster import Plot, dots_across, plot
from grpo_tui.drawing.chart_scale import Range, range_of, ticks, window
from grpo_tui.drawing.formatting import number
from grpo_tui.drawing.glyphs import Glyphs
from grpo_tui.state.run_model import Mark, MarkKind
from grpo_tui.state.series import Axis, Column, Gap, Point, Series

RAW = "$text-primary"
FAINT = "$foreground 45%"
SMOOTH = "$text-warning bold"
AXIS = "$foreground 55%"
ALERT = "$text-error bold"
MARK = "$text-accent bold"

Format = Callable[[float | None], str]

MARK_LETTERS: Final[dict[MarkKind, str]] = {
    "checkpoint": "C",
    "epoch": "E",
    "pause": "P",
    "restart": "R",
    "setting": "S",
}


@dataclass(frozen=True)
class ChartData:
    """A series with what its axes mean."""

    series: Series
    axis: Axis = "step"
    marks: Sequence[Mark] = ()
    format_y: Format = number
    format_x: Format = number


@dataclass(frozen=True)
class ChartView:
    """How a person looks at it."""

    zoom: int = 0
    """The visible part is 2^-zoom of the whole."""
    cursor: int | None = None
    """A step; without it the newest part is shown."""
    log: bool = False
    smoothing: float = 0.0


def draw_chart(
    data: ChartData, view: ChartView, width: int, height: int, glyphs: Glyphs
) -> list[Content]:
    """At most `height` lines, none wider than `width`; a note when there is nothing to draw."""
    if width < 1 or height < 1:
        return []
    return _Frame(data, view, width, height, glyphs).lines()[:height]


class _Frame:
    """The parts of one drawing."""

    def __init__(
        self, data: ChartData, view: ChartView, width: int, height: int, glyphs: Glyphs
    ) -> None:
        self._data, self._view, self._glyphs = data, view, glyphs
        self._series = data.series
        self._width, self._height = width, height
        self._cursor = self._cursor_point()
        center = None if self._cursor is None else self._position(self._cursor)
        full = range_of(data.series.extent(data.axis) or (), least=1.0)
        self._x_range = window(full, view.zoom, center) if full else Range(0, 1)

    def lines(self) -> list[Content]:
        shown = self._columns(dots_across(self._width, self._glyphs.raster))
        y_range = range_of(
            y for c in shown if isinstance(c, Column) for y in (c.low, c.high, c.last)
        )
        if y_range is None:
            return [self._note().truncate(self._width)]
        rows = self._height - 3
        labels = self._y_labels(y_range, rows)
        gutter = max((len(label) for label in labels.values()), default=0) + 1
        columns = self._width - gutter
        readout = self._readout().truncate(self._width)
        if rows < 2 or columns < 4:
            return [readout]
        return [
            *self._plot_rows(y_range, columns, rows, labels, gutter),
            *self._axis(columns, gutter),
            readout,
        ]

    def _cursor_point(self) -> Point | None:
        return None if self._view.cursor is None else self._series.nearest(self._view.cursor)

    def _position(self, point: Point) -> float:
        return {"step": point.step, "time": point.time, "tokens": point.tokens}[self._data.axis]

    def _columns(self, count: int, smoothing: float = 0.0) -> list[Column | Gap | None]:
        columns = self._series.columns(
            count,
            self._x_range.low,
            self._x_range.high,
            axis=self._data.axis,
            smoothing=smoothing,
        )
        return [_logarithm(column) for column in columns] if self._view.log else columns

    def _note(self) -> Content:
        if not self._series:
            text = "no values yet"
        elif self._view.log and self._series.high is not None:
            text = "no value above zero to show on a log scale [L]"
        else:
            text = f"{self._glyphs.gap} none of the {len(self._series)} values is finite"
        return Content.styled(text, FAINT)

    def _y_labels(self, y_range: Range, rows: int) -> dict[int, str]:
        def label(y: float) -> str:
            return _trim(self._data.format_y(_power(y) if self._view.log else y))

        labels: dict[int, str] = {}
        for value in ticks(y_range, max(2, rows // 2)):
            labels.setdefault(rows - 1 - round(y_range.place(value) * (rows - 1)), label(value))
        if len(set(labels.values())) < 2:
            labels = {rows - 1: label(y_range.low), 0: label(y_range.high)} | labels
        return labels

    def _plot_rows(
        self, y_range: Range, width: int, height: int, labels: dict[int, str], gutter: int
    ) -> list[Content]:
        raster = self._glyphs.raster
        dots = dots_across(width, raster)
        raw = plot(self._columns(dots), y_range, width, height, raster)
        mean = None
        if self._view.smoothing:
            smoothed = self._columns(dots, self._view.smoothing)
            mean = plot(smoothed, y_range, width, height, raster)
        cursor = None if self._cursor is None else self._column_of(self._cursor, width)
        rows = []
        for row in range(height):
            label = labels.get(row, "")
            tick = self._glyphs.tick_y if label else self._glyphs.vertical
            cells = [self._cell(raw, mean, row, column, cursor) for column in range(width)]
            runs = [
                ("".join(text for text, _ in run), style)
                for style, run in groupby(cells, key=lambda cell: cell[1])
            ]
            rows.append(Content.assemble((label.rjust(gutter - 1) + tick, AXIS), *runs))
        return rows

    def _cell(
        self, raw: Plot, mean: Plot | None, row: int, column: int, cursor: int | None
    ) -> tuple[str, str]:
        if row == raw.height - 1 and column in raw.gaps:
            return self._glyphs.gap, ALERT
        if mean is not None and (text := mean.text(row, column, "*")) != " ":
            return text, SMOOTH
        text = raw.text(row, column, "." if mean is not None else "*")
        if text != " ":
            return text, FAINT if mean is not None else RAW
        return (self._glyphs.cursor_line, AXIS) if column == cursor else (" ", "")

    def _column_of(self, place: float | Point, width: int) -> int | None:
        x = self._position(place) if isinstance(place, Point) else place
        share = self._x_range.place(x)
        return min(int(share * width), width - 1) if 0 <= share <= 1 else None

    def _axis(self, width: int, gutter: int) -> tuple[Content, Content]:
        signs = [(self._glyphs.horizontal, AXIS)] * width
        labels = [" "] * (width + gutter)
        free = 0
        for value in ticks(self._x_range, max(2, width // 12)):
            column = self._column_of(value, width)
            if column is None:
                continue
            signs[column] = (self._glyphs.tick_x, AXIS)
            text = self._data.format_x(value)[: len(labels)]
            start = min(max(column + gutter - len(text) // 2, 0), len(labels) - len(text))
            if start >= free:
                labels[start : start + len(text)] = text
                free = start + len(text) + 1
        for mark in self._data.marks:
            at = self._series.nearest(mark.step)
            column = None if at is None else self._column_of(at, width)
            if column is not None:
                signs[column] = (MARK_LETTERS[mark.kind], MARK)
        corner = (" " * (gutter - 1) + self._glyphs.corner, AXIS)
        return (
            Content.assemble(corner, *signs),
            Content.styled("".join(labels).rstrip(), AXIS),
        )

    def _readout(self) -> Content:
        point = self._cursor
        if point is None:
            return self._summary()
        gap = f"{self._glyphs.gap} not finite"
        value = gap if point.value is None else self._data.format_y(point.value)
        text = f"step {point.step}: {value}"
        if self._data.axis != "step":
            text += f"  {self._data.axis} {self._data.format_x(self._position(point))}"
        if self._view.smoothing and point.value is not None:
            index = bisect_left(self._series.axis("step"), point.step)
            mean = self._series.smoothed(self._view.smoothing)[index]
            text += f"  EMA {self._data.format_y(mean)}"
        near = [f"  {m.text or m.kind}" for m in self._data.marks if m.step == point.step]
        return Content.assemble((text, "bold"), ("".join(near), MARK))

    def _summary(self) -> Content:
        low = self._series.low
        hidden = " without values below 0" if low is not None and low <= 0 else ""
        parts = [
            f"{self._data.axis} [x]",
            f"log{hidden} [L]" if self._view.log else "linear [L]",
            f"EMA {self._view.smoothing:g} [=]" if self._view.smoothing else "raw [=]",
            f"{2**self._view.zoom}x [+-]",
        ]
        missing = self._series.gaps
        note = (f"  {self._glyphs.gap} {missing} not finite", ALERT) if missing else ("", "")
        return Content.assemble(("  ".join(parts), FAINT), note)


def _logarithm(column: Column | Gap | None) -> Column | Gap | None:
    """The column on a log scale; what is not above zero becomes a gap."""
    if not isinstance(column, Column):
        return column
    above = [y for y in (column.low, column.high, column.last) if y > 0]
    if not above:
        return Gap()
    last = column.last if column.last > 0 else max(above)
    return Column(
        math.log10(min(above)),
        math.log10(max(above)),
        math.log10(last),
        column.gap or column.low <= 0,
    )


def _trim(label: str) -> str:
    """`0.800` as `0.8`, `1.00k` as `1k`."""
    return (
        re.sub(r"\.?0+(?=[a-zA-Z%]*$)", "", label) if "." in label and "e" not in label else label
    )


def _power(y: float) -> float:
    return math.inf if y > 308.2 else 10.0**y
