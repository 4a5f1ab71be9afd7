"""The chart's keys, which work from every pane of a screen that has a chart."""

from textual.screen import Screen

from grpo_tui.widgets.metric_chart import MetricChart


class ChartActions(Screen[None]):
    """Passes the keys on to the chart."""

    def action_axis(self) -> None:
        self.query_one(MetricChart).cycle_axis()

    def action_smoothing(self) -> None:
        self.query_one(MetricChart).cycle_smoothing()

    def action_log_scale(self) -> None:
        self.query_one(MetricChart).toggle_log()

    def action_zoom(self, change: int) -> None:
        self.query_one(MetricChart).zoom(change)

    def action_cursor(self, direction: int) -> None:
        self.query_one(MetricChart).move_cursor(direction)

    def action_release(self) -> None:
        self.query_one(MetricChart).release_cursor()
