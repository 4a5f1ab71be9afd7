"""The metrics of a run, one a row: value, trend, course and range.

What the cursor stands on is charted.
"""

from textual.content import Content

from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.drawing.metric_specs import TITLE_WIDTH, MetricSpec, specs_for
from grpo_tui.state.run_model import RunState
from grpo_tui.state.series import Series
from grpo_tui.widgets.row_list import RowList
from grpo_tui.widgets.sparkline import sparkline

_VALUE = 8
_RANGE = 14
_NEWEST = 400
"""Values that a sparkline covers at most."""


class MetricList(RowList):
    """Metrics that the run has told, reward first."""

    BORDER_TITLE = "Metrics"

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._specs: list[MetricSpec] = []
        self._series: dict[str, Series] = {}
        self._picked: str | None = None

    def show(self, state: RunState) -> None:
        """Takes the state of now; the cursor stays on the metric that the person has picked.

        Until then it stands on the first, which becomes the reward once that is known.
        """
        self._series = state.series
        self._specs = specs_for(state.series)
        self.refresh_rows()
        index = next((i for i, s in enumerate(self._specs) if s.name == self._picked), 0)
        with self.prevent(RowList.Moved):
            self.cursor = index

    def action_move(self, rows: int) -> None:
        super().action_move(rows)
        self._picked = self.chosen

    def action_page(self, pages: float) -> None:
        super().action_page(pages)
        self._picked = self.chosen

    def action_edge(self, last: bool) -> None:
        super().action_edge(last)
        self._picked = self.chosen

    @property
    def chosen(self) -> str | None:
        """Name of the metric under the cursor."""
        return self._specs[self.cursor].name if self.cursor < len(self._specs) else None

    def count(self) -> int:
        return len(self._specs)

    def draw_row(self, index: int, width: int, selected: bool) -> Content:
        spec = self._specs[index]
        series = self._series[spec.name]
        mark = self.glyphs.row_cursor if selected else " "
        missing = bool(series) and series.last is None
        value = f"{self.glyphs.gap} nan" if missing else spec.format(series.last)
        parts: list[str | Content | tuple[str, str]] = [
            (mark, "$text-accent"),
            f"{spec.title[:TITLE_WIDTH]:<{TITLE_WIDTH}}",
            (f"{value:>{_VALUE}} ", "$text-error bold" if missing else "bold"),
            trend(spec, series, self.glyphs),
        ]
        room = width - TITLE_WIDTH - _VALUE - 4
        if room >= 8:
            limits = _range(spec, series) if room >= _RANGE + 10 else ""
            line = sparkline(series.values(_NEWEST), room - len(limits) - 1, self.glyphs)
            parts += [" ", (line.ljust(room - len(limits) - 1), "$text-primary"), (limits, _DIM)]
        return Content.assemble(*parts)


_DIM = "$foreground 50%"


def trend(spec: MetricSpec, series: Series, glyphs: Glyphs) -> Content:
    """The direction as a sign, coloured where the metric has a good one."""
    direction = series.trend()
    if direction == 0:
        return Content.styled(glyphs.flat, _DIM)
    sign = glyphs.rising if direction > 0 else glyphs.falling
    if not spec.better:
        return Content.styled(sign, "$foreground")
    improves = (direction > 0) == (spec.better == "up")
    return Content.styled(sign, "$text-success" if improves else "$text-error")


def _range(spec: MetricSpec, series: Series) -> str:
    if series.low is None or series.high is None:
        return ""
    text = f"{spec.format(series.low)}..{spec.format(series.high)}"
    return text[:_RANGE].rjust(_RANGE)
