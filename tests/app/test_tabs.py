"""What the tabs and panes show, and their keys."""

from pathlib import Path

import pytest

from dashboard import dashboard
from grpo_protocol.commands import Set
from grpo_protocol.messages import (
    Eval,
    Log,
    Paused,
)
from grpo_tui.notices import ChildExited, ChildStarted
from grpo_tui.screens.live import LiveScreen
from grpo_tui.screens.live_keys import TABS
from grpo_tui.screens.sample_detail import SampleDetail
from grpo_tui.widgets.log_view import LogView
from grpo_tui.widgets.metric_chart import MetricChart
from grpo_tui.widgets.metric_list import MetricList
from grpo_tui.widgets.sample_table import SampleTable
from grpo_tui.widgets.tab_bar import TabBar


async def test_sample_mode_is_sent_and_filters_what_is_held() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 3)
        table = board.live.query_one(SampleTable)
        assert table.count() == 24
        await board.press("m")
        assert board.sent == [Set("sample_display", "best_worst")]
        assert table.count() == 6
        assert "best/worst" in board.text
        await board.press("m", "m")
        assert board.sent[-1] == Set("sample_display", "all")
        assert table.count() == 24


async def test_mode_still_filters_after_the_trainer_has_gone() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 2)
        board.supervisor.alive = False
        await board.press("m")
        assert board.sent == []
        assert board.live.query_one(SampleTable).count() == 4


@pytest.mark.parametrize(("key", "tab"), [(str(i), name) for i, name in enumerate(TABS, 1)])
async def test_number_keys_open_their_tab(key: str, tab: str) -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.press(key)
        assert board.live.tab == tab
        assert f"[{key} " in board.text


async def test_tab_and_shift_tab_walk_the_tabs_round() -> None:
    async with dashboard() as board:
        start = board.live.tab
        for _ in TABS:
            await board.press("tab")
        assert board.live.tab == start
        await board.press("shift+tab")
        assert board.live.tab == "logs"


async def test_click_on_a_tab_opens_it() -> None:
    async with dashboard() as board:
        row = next(i for i, line in enumerate(board.lines) if "3 Config" in line)
        await board.pilot.click(offset=(board.lines[row].index("3 Config") + 2, row))
        await board.settle()
        assert board.live.tab == "config"


async def test_up_down_and_enter_on_a_metric_chart_it() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 5)
        board.live.query_one(MetricList).focus()
        await board.press("j", "j", "j")
        chart = board.live.query_one(MetricChart)
        assert str(chart.border_title) == "reward std"
        await board.press("enter")
        assert chart.has_focus


async def test_reward_is_charted_first_even_when_an_evaluation_came_before_it() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.feed(Eval(0, "held-out", 200, {"reward": 0.3}))
        await board.steps(1, 3)
        metrics = board.live.query_one(MetricList)
        assert str(board.live.query_one(MetricChart).border_title) == "reward"
        assert (metrics.cursor, metrics.scroll_y) == (0, 0)


async def test_metrics_that_were_never_told_are_not_listed() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 2)
        left = "\n".join(line[:46] for line in board.lines)
        assert "entropy" in left
        assert "perplexity" not in left


async def test_chart_keys_work_from_every_pane() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 40)
        chart = board.live.query_one(MetricChart)
        await board.press("left", "left")
        assert chart.view.cursor == 39
        assert "step 39:" in board.text
        await board.press("plus", "plus")
        assert "step 39:" in board.text
        await board.press("L", "equals_sign", "x")
        assert chart.view.log
        assert chart.view.smoothing == 0.99
        assert chart.axis == "time"
        await board.press("0", "escape", "minus")
        assert chart.view.cursor is None
        assert chart.view.zoom == 0


async def test_log_level_hides_what_is_below_it() -> None:
    async with dashboard() as board:
        await board.feed(Log("debug", "small talk"), Log("warn", "take care"))
        await board.press("1")
        assert "small talk" not in board.text
        assert "take care" in board.text
        await board.press("l")
        assert board.live.query_one(LogView).level == "warn"
        await board.press("l", "l")
        assert "small talk" in board.text


async def test_w29_scrolled_log_stays_still_and_counts_what_is_new() -> None:
    async with dashboard() as board:
        await board.press("1")
        await board.feed(*(Log("info", f"line {n:04}") for n in range(300)))
        assert "line 0299" in board.text
        await board.press("pageup", "pageup")
        before = [line[47:117] for line in board.lines[3:30]]
        await board.feed(*(Log("info", f"line {n:04}") for n in range(300, 340)))
        assert [line[47:117] for line in board.lines[3:30]] == before
        assert "40 new" in board.text
        # Old lines leave the book while the reader's place holds still.
        await board.feed(*(Log("info", f"line {n:04}") for n in range(340, 5100)))
        assert [line[47:117] for line in board.lines[3:30]] == before
        await board.press("f")
        assert "line 5099" in board.text
        assert "new" not in board.find("follow")


async def test_w30_completions_can_be_opened_while_paused() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 2)
        await board.press("p")
        await board.feed(Paused(2))
        await board.press("enter")
        assert isinstance(board.app.screen, SampleDetail)
        assert "COMPLETION" in board.text


async def test_detail_shows_the_group_and_walks_it() -> None:
    async with dashboard((80, 24)) as board:
        await board.begin()
        await board.steps(1, 3)
        await board.press("enter")
        screen = board.app.screen
        assert isinstance(screen, SampleDetail)
        first = screen.sample
        assert "PROMPT" in board.text
        assert "expected answer" in board.text
        assert "mean" in board.text
        await board.press("right_square_bracket")
        assert screen.sample.group == first.group
        assert screen.sample.group_index == 1
        await board.press("left_square_bracket", "left_square_bracket")
        assert screen.sample.group_index == 3
        await board.press("left_curly_bracket")
        assert screen.sample.step == 2
        await board.press("v")
        assert "⏎" in board.text
        await board.press("escape")
        assert isinstance(board.app.screen, LiveScreen)


async def test_chosen_completion_stays_chosen_while_new_ones_arrive() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 3)
        table = board.live.query_one(SampleTable)
        await board.press("j", "j")
        chosen = table.current
        assert chosen is not None
        await board.steps(4, 6)
        assert table.current is chosen
        assert "24 new" in board.text
        await board.press("f")
        assert table.cursor == 0
        assert table.current is not None
        assert table.current.step == 6


async def test_filter_narrows_samples_and_escape_clears_it() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 4)
        table = board.live.query_one(SampleTable)
        await board.press("slash", *"step:2")
        assert table.count() == 8
        await board.press("enter")
        assert table.has_focus
        assert "8 hits" in board.text
        await board.press("slash", "escape")
        assert table.count() == 32


async def test_letters_go_to_the_filter_while_it_is_open() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.press("1", "slash", "q", "p")
        assert isinstance(board.app.screen, LiveScreen)
        assert board.sent == []


async def test_config_tab_lists_every_setting_and_describes_the_chosen_one() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.press("3", "j")
        assert "group_size" in board.text
        assert "Folder of an mlx-lm model" in board.text


async def test_w33_lines_and_completions_from_before_a_restart_stay_in_order() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.feed(Log("warn", "first warning"))
        await board.steps(1, 2)
        await board.feed(ChildExited(-9, asked=False), ChildStarted(4712, restart=1))
        await board.feed(Log("warn", "second warning"))
        await board.press("1", "l")
        rows = [line for line in board.lines if " warning" in line]
        assert ["first" in rows[0], "second" in rows[1]] == [True, True]
        assert board.live.query_one(SampleTable).count() == 16
        assert "restarts 1" in board.lines[0]


async def test_tab_bar_keeps_its_titles_on_a_narrow_screen() -> None:
    async with dashboard((62, 24)) as board:
        await board.begin()
        await board.steps(1, 3)
        bar = board.live.query_one(TabBar)
        assert "Samples" in str(bar.render())
        assert "5 Charts" in str(bar.render())


async def test_f6_walks_the_panes_and_z_zooms_the_focused_one() -> None:
    async with dashboard() as board:
        await board.begin()
        await board.steps(1, 5)
        seen = []
        for _ in range(3):
            await board.press("f6")
            assert board.app.focused is not None
            seen.append(board.app.focused.id)
        assert sorted(map(str, seen)) == ["chart", "metrics", "sample-table"]
        await board.press("shift+f6")
        assert board.app.focused is not None
        assert board.app.focused.id == seen[1]
        await board.press("z")
        zoomed = board.app.focused
        assert zoomed.size.width > 100
        await board.press("z")
        assert zoomed.size.width < 100


async def test_copy_says_what_is_known_and_keeps_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with dashboard((120, 40)) as board:
        await board.begin()
        await board.steps(1, 1)
        await board.press("enter", "y")
        await board.until(lambda: "asked the terminal to copy" in board.text)
        screen = board.app.screen
        assert isinstance(screen, SampleDetail)
        (file,) = tmp_path.iterdir()
        assert file.read_text("utf-8") == screen.sample.completion
