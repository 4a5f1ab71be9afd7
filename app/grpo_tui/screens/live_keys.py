"""The keys of the screen of a run.

Each has an id, by which it can be remapped, and a tooltip, which is its line in the help.
"""

from typing import Final

from textual.binding import Binding, BindingType

TABS: Final = ("logs", "samples", "config", "database", "charts")

LIVE_KEYS: Final[list[BindingType]] = [
    Binding("p", "app.pause", "Pause", id="run.pause", tooltip="Pause after the running step"),
    Binding("r", "app.resume", "Resume", id="run.resume", tooltip="Go on training"),
    Binding("s", "app.save", "Save", id="run.save", tooltip="Save a checkpoint now"),
    Binding(
        "c", "app.cancel_restart", "Cancel", id="restart.cancel", tooltip="No automatic restart"
    ),
    Binding("a", "app.answer", "Answer", id="run.answer", tooltip="Answer the trainer's question"),
    Binding(
        "m",
        "app.next_mode",
        "Mode",
        id="samples.mode",
        tooltip="Completions sent and shown: best and worst, random, all",
    ),
    Binding("l", "level", "Level", id="logs.level", tooltip="Lowest log level shown"),
    Binding(
        "f", "follow", "Follow", id="view.follow", tooltip="Follow the newest line or completion"
    ),
    Binding("w", "wrap", "Wrap", show=False, id="logs.wrap", tooltip="Wrap long log lines"),
    Binding(
        "slash",
        "filter",
        "Filter",
        key_display="/",
        id="view.filter",
        tooltip="Filter: words, and for samples reward<0.3 fin:length step:4..9",
    ),
    Binding(
        "enter",
        "open",
        "Open",
        key_display="Enter",
        id="view.open",
        tooltip="Open the completion; chart the metric; restart now",
    ),
    Binding(
        "x", "axis", "Axis", show=False, id="chart.axis", tooltip="x axis: step, time or tokens"
    ),
    Binding(
        "equals_sign",
        "smoothing",
        "EMA",
        show=False,
        key_display="=",
        id="chart.smoothing",
        tooltip="Moving average: none, .6, .9, .99",
    ),
    Binding(
        "L", "log_scale", "Log", show=False, id="chart.log", tooltip="Linear or logarithmic y axis"
    ),
    Binding(
        "plus",
        "zoom(1)",
        "Zoom in",
        show=False,
        key_display="+",
        id="chart.zoom_in",
        tooltip="Chart: half as many steps",
    ),
    Binding(
        "minus",
        "zoom(-1)",
        "Zoom out",
        show=False,
        key_display="-",
        id="chart.zoom_out",
        tooltip="Chart: twice as many steps",
    ),
    Binding(
        "0", "zoom(0)", "Whole", show=False, id="chart.zoom_reset", tooltip="Chart: the whole run"
    ),
    Binding(
        "left",
        "cursor(-1)",
        "Earlier",
        show=False,
        id="chart.left",
        tooltip="Chart: cursor to an earlier step",
    ),
    Binding(
        "right",
        "cursor(1)",
        "Later",
        show=False,
        id="chart.right",
        tooltip="Chart: cursor to a later step",
    ),
    Binding(
        "escape",
        "release",
        "Follow",
        show=False,
        id="chart.release",
        tooltip="Chart: leave the cursor and follow the newest step",
    ),
    Binding(
        "z",
        "zoom_pane",
        "Zoom",
        show=False,
        id="view.zoom",
        tooltip="The focused pane fills the screen, and back",
    ),
    Binding("tab", "tab(1)", "Next tab", show=False, id="tab.next", tooltip="Next tab"),
    Binding(
        "shift+tab",
        "tab(-1)",
        "Previous tab",
        show=False,
        id="tab.previous",
        tooltip="Previous tab",
    ),
    *(
        Binding(
            str(number),
            f"open_tab('{name}')",
            name.title(),
            show=False,
            id=f"tab.{name}",
            tooltip=f"{name.title()} tab",
        )
        for number, name in enumerate(TABS, start=1)
    ),
    Binding("f6", "pane(1)", "Next pane", show=False, id="pane.next", tooltip="Next pane"),
    Binding(
        "shift+f6",
        "pane(-1)",
        "Previous pane",
        show=False,
        id="pane.previous",
        tooltip="Previous pane",
    ),
    Binding(
        "question_mark", "app.help", "Help", key_display="?", id="app.help", tooltip="All keys"
    ),
    Binding("q", "app.quit", "Quit", id="app.quit", tooltip="Quit, stop or detach"),
]
