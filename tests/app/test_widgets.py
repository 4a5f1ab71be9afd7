"""Pure parts of the widgets: sparklines, numbers, wrapping, filters, the header's line."""

import math

import pytest

from grpo_protocol.commands import Pause
from grpo_protocol.messages import Failed, PhaseChange
from grpo_tui.drawing.formatting import ago, duration, memory, number, percent, seconds
from grpo_tui.drawing.glyphs import ASCII, UNICODE
from grpo_tui.drawing.header_line import header_line
from grpo_tui.drawing.metric_specs import specs_for
from grpo_tui.drawing.sample_text import body_blocks, group_line
from grpo_tui.drawing.wrapping import wrap
from grpo_tui.notices import ChildExited, CommandSent
from grpo_tui.state.sample_filter import narrow
from grpo_tui.state.samples import sample_of
from grpo_tui.widgets.progress_panel import bar
from grpo_tui.widgets.sparkline import sparkline
from run_feed import Feed, generation, step


def test_sparkline_has_one_column_a_value_until_it_is_full() -> None:
    assert sparkline([1.0], 10, UNICODE) == "▄"
    assert sparkline([0.0, 1.0], 10, UNICODE) == "▁█"
    assert len(sparkline([float(n) for n in range(1000)], 10, UNICODE)) == 10
    assert sparkline([], 10, UNICODE) == sparkline([1.0], 0, UNICODE) == ""


def test_sparkline_shows_a_gap_for_each_bucket_with_a_value_that_is_not_finite() -> None:
    assert sparkline([1.0, None, 2.0], 3, ASCII) == ".!@"
    assert sparkline([math.nan, math.inf], 5, ASCII) == "!!"
    values: list[float | None] = [1.0] * 1000
    values[555] = None
    assert sparkline(values, 10, ASCII).count("!") == 1


def test_sparkline_survives_the_range_of_a_double() -> None:
    assert sparkline([-1.7e308, 1.7e308], 2, ASCII) == ".@"
    assert sparkline([3.0, 3.0], 2, UNICODE) == "▄▄"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.6123, "0.612"),
        (-0.0184, "-0.018"),
        (0.0001, "1e-4"),
        (0.00015, "1.5e-4"),
        (0.00249, "2.5e-3"),
        (1e-5, "1e-5"),
        (21.25, "21.2"),
        (999.0, "999"),
        (1840.0, "1.84k"),
        (11_300_000.0, "11.3M"),
        (1e20, "1e20"),
        (1e308, "1e308"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_number_keeps_three_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_other_quantities_read_well() -> None:
    assert [percent(v) for v in (0.0, 0.31, 0.016, 1.0)] == ["0%", "31%", "1.6%", "100%"]
    assert [duration(v) for v in (9, 102, 6127, 200_000)] == ["0:09", "1:42", "1:42:07", "2d 07h"]
    assert [seconds(v) for v in (11_900, 200, None)] == ["11.9s", "200ms", "-"]
    assert [memory(v) for v in (512, 11_200, None)] == ["512M", "11.2G", "-"]
    assert [ago(v) for v in (9, 200, 7500)] == ["9s", "3m", "2h 05m"]


def test_wrapping_loses_nothing_and_stays_inside() -> None:
    text = "The quick brown fox\n\n漢字漢字漢字 " + "x" * 50 + "\tend"
    lines = list(wrap(text, 12))
    from rich.cells import cell_len

    assert all(cell_len(line.rstrip()) <= 12 for line in lines)
    plain = text.expandtabs().replace(" ", "").replace("\n", "")
    assert "".join(lines).replace(" ", "") == plain
    assert lines[0] == "The quick "


def test_bar_is_full_only_when_all_is_done() -> None:
    assert bar(999, 1000, 10, ASCII).plain.count("#") == 10
    assert bar(999, 1000, 10, UNICODE).plain.count("━") == 9
    assert bar(1000, 1000, 10, UNICODE).plain == "━" * 10
    assert bar(5, 0, 4, ASCII).plain == "...."


def test_filter_takes_words_and_bounds() -> None:
    feed = Feed()
    feed.running()
    feed(step(1), generation(0, 0.2, 1), generation(1, 0.9, 1), step(2), generation(0, None, 2))
    held = list(feed.state.samples)
    assert [s.number for s in narrow(held, "reward>0.5")] == [1]
    assert [s.number for s in narrow(held, "reward<=0.2")] == [0]
    assert [s.number for s in narrow(held, "step:2")] == [2]
    assert [s.number for s in narrow(held, "step:1..2 COMPLETION prompt")] == [0, 1, 2]
    assert narrow(held, "fin:length") == []
    assert narrow(held, "reward<..") == []


def test_metrics_are_listed_reward_first_then_its_parts() -> None:
    names = ["eval/test/reward", "kl", "loss", "rewards/format/mean", "made/up", "reward"]
    titles = [spec.title for spec in specs_for(names)]
    assert titles == ["reward", "  format", "eval reward", "KL", "loss", "made/up"]


def test_header_keeps_the_state_at_every_width() -> None:
    feed = Feed()
    feed.running()
    feed.steps(1, 3)
    feed(PhaseChange(4, "generating", 34, 64))
    for width in range(12, 200):
        line = header_line(feed.state, "demo", width, UNICODE)
        assert line.cell_length <= width
        assert "▶ running"[: width - 1] in line.plain
    assert "generating 34/64" in header_line(feed.state, "demo", 60, UNICODE).plain


def test_header_of_a_pause_asked_for_and_of_a_crash() -> None:
    feed = Feed()
    feed.running()
    feed(CommandSent(1, Pause()))
    assert "pausing..." in header_line(feed.state, "", 80, ASCII).plain
    feed(ChildExited(-11, asked=False))
    line = header_line(feed.state, "", 100, UNICODE).plain
    assert "✗ crashed" in line
    assert "SIGSEGV" in line


def test_header_cuts_the_reason_of_a_failure_and_keeps_the_model_and_the_place() -> None:
    feed = Feed()
    feed.running()
    feed.steps(1, 3)
    feed(Failed("ran out of memory in the forward pass; " + "use a smaller batch " * 10, 1))
    for glyphs in (UNICODE, ASCII):
        line = header_line(feed.state, "demo", 100, glyphs)
        assert line.cell_length == 100
        for told in ("tiny", "batch 3/100", "failed", "ran out of memory in the forward pass"):
            assert told in line.plain
        assert line.plain.endswith(glyphs.ellipsis)
    assert "ran out of memory" in header_line(feed.state, "demo", 40, UNICODE).plain
    for width in range(1, 200):
        assert header_line(feed.state, "demo", width, UNICODE).cell_length <= width


def test_group_line_tells_a_group_without_spread() -> None:
    events = [generation(index, 1.0, 5) for index in range(4)]
    group = [sample_of(event, n, 5, 4) for n, event in enumerate(events)]
    line = group_line(group[1], group, None)
    assert "no gradient" in line
    assert line.endswith("1.0 [1.0] 1.0 1.0")


def test_group_line_of_a_group_sent_in_part_claims_no_mean() -> None:
    group = [sample_of(generation(0, 1.0, 5), 0, 5, 4), sample_of(generation(3, 0.0, 5), 1, 5, 4)]
    line = group_line(group[0], group, 4)
    assert line.startswith("2 of 4 answers were sent")
    assert "mean" not in line
    assert group_line(group[0], group, 2).startswith("mean 0.500")


def test_thinking_is_shown_apart_and_whole() -> None:
    event = generation(0, 1.0, 1)
    text = "<think>7+5=12\ncarry</think>\n<answer>62</answer>"
    from msgspec.structs import replace

    blocks = body_blocks(sample_of(replace(event, completion=text), 0, 1, 4))
    assert "".join(block.text for block in blocks).endswith(text)
    assert any("italic" in block.style and "carry" in block.text for block in blocks)
