"""What the keys of the open tab do: levels, wrapping, following, filtering."""

from abc import abstractmethod

from textual import on

from grpo_tui.screens.chart_actions import ChartActions
from grpo_tui.widgets.filter_bar import FilterBar
from grpo_tui.widgets.log_view import LogView
from grpo_tui.widgets.samples_tab import SamplesTab


class TabActions(ChartActions):
    """A screen with a Logs tab and a Samples tab, either of which can be filtered."""

    tab: str
    _queries: dict[str, str]

    @abstractmethod
    def _show_tab(self) -> None: ...

    @abstractmethod
    def _show_tabs(self) -> None: ...

    @abstractmethod
    def _focus_tab(self) -> None: ...

    def action_level(self) -> None:
        self.query_one(LogView).cycle_level()
        self._show_tabs()

    def action_wrap(self) -> None:
        self.query_one(LogView).toggle_wrap()

    def action_follow(self) -> None:
        if self.tab == "logs":
            self.query_one(LogView).toggle_follow()
        else:
            table = self.query_one(SamplesTab).table
            table.set_follow(not table.follow)
        self._show_tabs()

    def action_filter(self) -> None:
        hint = "words"
        if self.tab == "samples":
            hint = "words  reward<0.3  fin:length  step:4..9   Enter keeps, Esc clears"
        self.query_one(FilterBar).open(self._queries[self.tab], hint)

    @on(FilterBar.Typed)
    def _filter_typed(self, event: FilterBar.Typed) -> None:
        self._queries[self.tab] = event.text
        if self.tab == "logs":
            self.query_one(LogView).set_words(tuple(event.text.split()))
        elif self.tab == "samples":
            self.query_one(SamplesTab).table.query_text = event.text
        self._show_tab()
        self._show_tabs()

    @on(FilterBar.Closed)
    def _filter_closed(self) -> None:
        self._focus_tab()
