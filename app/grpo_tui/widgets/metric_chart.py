"""The chart of one metric with zoom, cursor, smoothing, log scale and a choice of x axis."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from textual import events
from textual.content import Content
from textual.widget import Widget

from grpo_tui.drawing.chart_frame import ChartData, ChartView, Format, draw_chart
from grpo_tui.drawing.formatting import duration, number
from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.drawing.metric_specs import MetricSpec, spec_of
from grpo_tui.state.run_model import RunState
from grpo_tui.state.series import Axis, Series

SMOOTHINGS: Final = (0.0, 0.6, 0.9, 0.99)
_AXES: Final[tuple[Axis, ...]] = ("step", "time", "tokens")
_MAX_ZOOM: Final = 12


class MetricChart(Widget, can_focus=True):
    """Draws a series; keeps how the person looks at it while the data grows."""

    DEFAULT_CSS = "MetricChart { height: 1fr; text-wrap: nowrap; }"

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._spec: MetricSpec = spec_of("reward")
        self._series = Series()
        self._state: RunState | None = None
        self.axis: Axis = "step"
        self.view = ChartView(smoothing=SMOOTHINGS[2])

    def show(self, state: RunState, name: str) -> None:
        """Takes the state of now and the metric to draw."""
        self._state = state
        self._spec = spec_of(name)
        self._series = state.series.get(name, Series())
        self.border_title = Content(self._spec.title.strip())
        self.refresh()

    def render(self) -> Content:
        data = ChartData(
            self._series,
            self.axis,
            [] if self._state is None else list(self._state.marks),
            self._spec.format,
            self._format_x(),
        )
        lines = draw_chart(data, self.view, self.size.width, self.size.height, self._glyphs)
        return Content("\n").join(lines)

    def _format_x(self) -> Format:
        if self.axis == "time":
            start = self._state.times.started if self._state is not None else None
            return lambda x: duration(None if x is None else x - (start or 0.0))
        if self.axis == "tokens":
            return number
        return lambda x: "" if x is None or x != int(x) else f"{int(x)}"

    def zoom(self, change: int) -> None:
        """Doubles or halves the visible part; 0 shows all and leaves the cursor."""
        if change == 0:
            self.view = replace(self.view, zoom=0, cursor=None)
        else:
            zoom = min(max(self.view.zoom + change, 0), _MAX_ZOOM)
            self.view = replace(self.view, zoom=zoom)
        self.refresh()

    def move_cursor(self, direction: int) -> None:
        """Moves by one step, or by one column where a column holds many."""
        steps: Sequence[float] = self._series.axis("step")
        if not steps:
            return
        stride = max(1, len(steps) // 2**self.view.zoom // max(1, self.size.width))
        at = len(steps) if self.view.cursor is None else bisect_left(steps, self.view.cursor)
        index = min(max(at + direction * (stride if at < len(steps) else 1), 0), len(steps) - 1)
        self.view = replace(self.view, cursor=int(steps[index]))
        self.refresh()

    def release_cursor(self) -> None:
        """Follows the newest step again."""
        self.view = replace(self.view, cursor=None)
        self.refresh()

    def toggle_log(self) -> None:
        """Linear or logarithmic y axis."""
        self.view = replace(self.view, log=not self.view.log)
        self.refresh()

    def cycle_smoothing(self) -> None:
        """The next of no smoothing, .6, .9 and .99."""
        index = SMOOTHINGS.index(self.view.smoothing)
        self.view = replace(self.view, smoothing=SMOOTHINGS[(index + 1) % len(SMOOTHINGS)])
        self.refresh()

    def cycle_axis(self) -> None:
        """The next of step, time and tokens."""
        self.axis = _AXES[(_AXES.index(self.axis) + 1) % len(_AXES)]
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        self.focus()
