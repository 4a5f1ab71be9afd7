"""The most telling metrics in one row, where there is no room for the list."""

from textual.content import Content
from textual.widget import Widget

from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.drawing.metric_specs import spec_of
from grpo_tui.state import metric_names as names
from grpo_tui.state.run_model import RunState
from grpo_tui.widgets.metric_list import trend
from grpo_tui.widgets.progress_panel import fitting
from grpo_tui.widgets.sparkline import sparkline

_ORDER = (names.REWARD, names.ZERO_STD, names.LENGTH, names.TRUNCATED, names.LOSS, names.KL)
_SPARK = 8


class MetricStrip(Widget):
    """As many metrics as fit, reward first."""

    DEFAULT_CSS = "MetricStrip { height: 1; text-wrap: nowrap; }"

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._items: list[Content] = []

    def show(self, state: RunState) -> None:
        """Takes the state of now."""
        self._items = [self._item(state, name) for name in _ORDER if name in state.series]
        self.refresh()

    def _item(self, state: RunState, name: str) -> Content:
        spec, series = spec_of(name), state.series[name]
        value = f"{self._glyphs.gap}nan" if series.last is None else spec.format(series.last)
        return Content.assemble(
            f"{spec.title} ",
            (value, "bold" if series.last is not None else "$text-error bold"),
            trend(spec, series, self._glyphs),
            " ",
            (sparkline(series.values(120), _SPARK, self._glyphs), "$text-primary"),
        )

    def render(self) -> Content:
        return fitting(self._items, self.size.width, self._glyphs)
