"""The screen of a run: metrics, chart and progress at the left, tabs at the right."""

from pathlib import Path
from typing import ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Footer, Static

from grpo_tui.drawing.formatting import integer
from grpo_tui.drawing.glyphs import Glyphs
from grpo_tui.drawing.layouts import LAYOUTS, layout_for
from grpo_tui.screens.generation import GenerationScreen
from grpo_tui.screens.live_keys import LIVE_KEYS, TABS
from grpo_tui.screens.sample_detail import SampleDetail
from grpo_tui.screens.tab_actions import TabActions
from grpo_tui.state.metric_names import REWARD
from grpo_tui.state.run_model import RunState
from grpo_tui.widgets.config_view import ConfigView
from grpo_tui.widgets.database_view import DatabaseView, GenerationOpened
from grpo_tui.widgets.filter_bar import FilterBar
from grpo_tui.widgets.log_view import LogView
from grpo_tui.widgets.metric_chart import MetricChart
from grpo_tui.widgets.metric_list import MetricList
from grpo_tui.widgets.metric_strip import MetricStrip
from grpo_tui.widgets.progress_panel import ProgressPanel
from grpo_tui.widgets.row_list import RowList
from grpo_tui.widgets.run_header import RunHeader
from grpo_tui.widgets.samples_tab import SamplesTab
from grpo_tui.widgets.tab_bar import Tab, TabBar

_ROOMY: Final = 160
_TALL: Final = 36


class LiveScreen(TabActions):
    """Shows the run state; asks the app for what changes the run."""

    CSS_PATH = "live.tcss"
    AUTO_FOCUS = None

    BINDINGS: ClassVar[list[BindingType]] = LIVE_KEYS

    def __init__(self, state: RunState, name: str, folder: Path, glyphs: Glyphs) -> None:
        super().__init__()
        self._folder = folder
        self._record: tuple[str, str | None, str | None] | None = None
        self._state, self._run_name, self._glyphs = state, name, glyphs
        self.tab = "samples"
        self._side_tab = "samples"
        self._queries = dict.fromkeys(TABS, "")
        self._possible: tuple[object, ...] = ()
        self._subtitle = Content("")

    def compose(self) -> ComposeResult:
        glyphs = self._glyphs
        yield RunHeader(self._state, self._run_name, glyphs)
        yield MetricStrip(glyphs, id="strip")
        yield ProgressPanel(glyphs, strip=True, id="progress-strip")
        yield TabBar(id="tabs")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield MetricList(glyphs, id="metrics")
                yield MetricChart(glyphs, id="chart")
                yield ProgressPanel(glyphs, id="progress")
            with Vertical(id="right"), ContentSwitcher(id="content", initial="samples"):
                yield LogView(self._state.logs, id="logs")
                yield SamplesTab(self._state, glyphs, id="samples")
                with Vertical(id="config"):
                    yield ConfigView(glyphs, id="config-view")
                    yield Static(id="config-note", markup=False)
                yield DatabaseView(glyphs=glyphs, id="database")
        yield FilterBar()
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._focus_tab()
        self.show_state(changed=True)

    def on_resize(self, event: events.Resize) -> None:
        layout = layout_for(event.size.width, event.size.height)
        for name in LAYOUTS:
            self.set_class(name == layout, f"-{name}")
        self.set_class(layout == "wide" and event.size.width >= _ROOMY, "-roomy")
        self.set_class(layout in {"wide", "middle"} and event.size.height < _TALL, "-short")
        self.call_after_refresh(self.show_state, changed=True)

    # --- drawing

    def show_state(self, *, changed: bool) -> None:
        """Redraws what is visible; without `changed` only what moves with the clock."""
        if not self.is_mounted or not self.query(RunHeader):
            return
        self.query_one(RunHeader).refresh()
        for panel in self.query(ProgressPanel):
            if panel.is_on_screen:
                panel.show(self._state)
        if not changed:
            return
        with self.app.batch_update():
            self._show_left()
            self._show_tab()
            self._show_tabs()
        self._refresh_keys()

    def _refresh_keys(self) -> None:
        """Draws the footer anew when other keys work than before; that costs a whole layout."""
        state = self._state
        sample = self.query_one(SamplesTab).table.current
        possible = (
            self.tab,
            state.status,
            state.restart is None,
            bool(state.questions),
            sample is None,
        )
        if possible != self._possible:
            self._possible = possible
            self.refresh_bindings()

    def _show_left(self) -> None:
        strip = self.query_one(MetricStrip)
        if strip.display:
            strip.show(self._state)
        if self.query_one("#left").display:
            metrics = self.query_one(MetricList)
            metrics.show(self._state)
            self.query_one(MetricChart).show(self._state, metrics.chosen or REWARD)

    def _show_tab(self) -> None:
        match self.tab:
            case "logs":
                self.query_one(LogView).update_lines()
            case "samples":
                self.query_one(SamplesTab).show()
            case "config":
                view = self.query_one(ConfigView)
                view.show(self._state)
                self.query_one("#config-note", Static).update(view.describe())
            case "database":
                self._show_record()
            case _:
                pass

    def _show_record(self) -> None:
        """Names the record to the view once the trainer has told it, and again after a restart."""
        state = self._state
        path = state.database_path
        if path is None or (path, state.run_id, state.output_dir) == self._record:
            return
        self._record = (path, state.run_id, state.output_dir)
        run_folder = None if state.output_dir is None else self._folder / state.output_dir
        self.query_one(DatabaseView).open(self._folder / path, state.run_id, run_folder)

    def _show_tabs(self) -> None:
        counts = {
            "logs": integer(len(self._state.logs)),
            "samples": integer(self._state.samples.received),
        }
        tabs = tuple(
            Tab(
                name,
                name.title(),
                {"config": "Conf", "database": "DB"}.get(name, name.title()),
                counts.get(name, ""),
            )
            for name in TABS
        )
        note = self._note()
        content = self.query_one(ContentSwitcher)
        framed = content.styles.border_bottom[0] not in {"", "none"}
        subtitle = note if framed else Content("")
        if subtitle != self._subtitle:
            self._subtitle = subtitle
            content.border_subtitle = Content.assemble(subtitle)
        self.query_one(TabBar).show(tabs, self.tab, Content("") if framed else note)

    def _note(self) -> Content:
        if self.tab == "samples":
            return self.query_one(SamplesTab).note()
        if self.tab == "logs":
            view = self.query_one(LogView)
            new = f"{view.unseen} new  " if view.unseen else ""
            hits = f"/{self._queries['logs']}  " if self._queries["logs"] else ""
            follow = "on" if view.follow else "off"
            text = f"{new}{hits}level {view.level}+ [l]  follow {follow} [f] "
            return Content.styled(text, "$foreground 60%")
        return Content("")

    @on(RowList.Moved, "#metrics")
    def _metric_moved(self) -> None:
        chosen = self.query_one(MetricList).chosen
        self.query_one(MetricChart).show(self._state, chosen or REWARD)

    @on(RowList.Moved, "#config-view")
    def _key_moved(self) -> None:
        self._show_tab()

    @on(RowList.Moved, "#sample-table")
    def _sample_moved(self) -> None:
        self._show_tabs()

    # --- tabs and panes

    def action_tab(self, direction: int) -> None:
        index = (TABS.index(self.tab) + direction) % len(TABS)
        self.action_open_tab(TABS[index])

    def action_open_tab(self, name: str) -> None:
        if self.maximized is not None:
            self.minimize()
        self.tab = name
        self.set_class(name == "charts", "-charts")
        if name != "charts":
            self.query_one(ContentSwitcher).current = name
        self.query_one(FilterBar).remove_class("-open")
        self._focus_tab()
        self.call_after_refresh(self.show_state, changed=True)

    @on(TabBar.Picked)
    def _tab_picked(self, event: TabBar.Picked) -> None:
        self.action_open_tab(event.tab_id)

    def _tab_widget(self) -> Widget:
        selector = {
            "logs": "#logs",
            "samples": "#sample-table",
            "config": "#config-view",
            "database": "#database",
            "charts": "#metrics",
        }[self.tab]
        return self.query_one(selector)

    def _focus_tab(self) -> None:
        self._tab_widget().focus()

    def action_pane(self, direction: int) -> None:
        panes = [self.query_one("#metrics"), self.query_one("#chart"), self._tab_widget()]
        shown = [pane for pane in dict.fromkeys(panes) if pane.is_on_screen]
        if not shown:
            return
        here = next((i for i, pane in enumerate(shown) if pane.has_focus), -1)
        shown[(here + direction) % len(shown)].focus()

    def action_zoom_pane(self) -> None:
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None:
            self.maximize(self.focused, container=False)

    # --- actions of the open tab

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "level" | "wrap":
                return self.tab == "logs"
            case "follow" | "filter":
                return self.tab in {"logs", "samples"}
            case "open":
                if self._state.restart is not None or self.query_one(MetricList).has_focus:
                    return True
                return (
                    self.tab == "samples" and self.query_one(SamplesTab).table.current is not None
                )
            case _:
                return True

    def action_open(self) -> None:
        sample = self.query_one(SamplesTab).table.current
        if self._state.restart is not None:
            self.app.run_worker(self.app.run_action("restart_now"), group="actions")
        elif self.query_one(MetricList).has_focus:
            self.query_one(MetricChart).focus()
        elif sample is not None:
            self.app.push_screen(SampleDetail(self._state, sample, self._glyphs))

    @on(GenerationOpened)
    def _generation_opened(self, event: GenerationOpened) -> None:
        self.app.push_screen(GenerationScreen(event.row, self._glyphs))

    @on(RowList.Chosen, "#sample-table")
    def _sample_chosen(self) -> None:
        self.action_open()
