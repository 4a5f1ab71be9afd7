"""Nothing that passes the border can act on a terminal or hide text."""

import pytest

from grpo_tui.sanitize import CELL_LIMIT, as_drawn, clean, clean_line


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("a\x00b", "a␀b"),
        ("\x7f", "␡"),
        ("\x9b2J", "<U+009B>2J"),
        ("safe\u202egnp.exe", "safe<U+202E>gnp.exe"),
        ("zero\u200bwidth", "zero<U+200B>width"),
        ("tag\U000e0041", "tag<U+E0041>"),
        ("half \ud83d pair", "half \ufffd pair"),
        ("a\u2028b\u2029c\u0085d\r\ne", "a\nb\nc\nd\ne"),
        ("carriage\rreturn", "carriage␍return"),
        ("tab\tand\nnewline", "tab\tand\nnewline"),
    ],
)
def test_hostile_characters_become_visible(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_ascii_mode_uses_carets() -> None:
    assert clean("\x1b[2J\x7f", ascii_only=True) == "^[[2J^?"


def test_joiner_inside_an_emoji_stays_and_elsewhere_is_shown() -> None:
    family = "👨\u200d👩\u200d👧"
    assert clean(family) == family
    assert clean("👩🏽\u200d🚀") == "👩🏽\u200d🚀"
    assert clean("pass\u200dword") == "pass<U+200D>word"
    assert clean("🎉\u202e🎉") == "🎉<U+202E>🎉"


def test_every_control_character_is_caught() -> None:
    everything = "".join(map(chr, range(0x110000)))
    shown = clean(everything, limit=len(everything))
    forbidden = {*range(0x20), *range(0x7F, 0xA0)} - {0x09, 0x0A}
    forbidden |= {*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xE0000, 0xE0080)}
    forbidden |= {*range(0xD800, 0xE000)}
    assert not forbidden & set(map(ord, shown))
    shown.encode()


def test_long_text_is_cut_and_says_by_how_much() -> None:
    assert clean("x" * 1500, limit=100) == "x" * 100 + "… (1,400 more characters)"


def test_cell_is_one_short_line() -> None:
    assert clean_line("two\nlines\tand a tab") == "two␤lines and a tab"
    long = clean_line("\x1b" * 1000)
    assert len(long) == CELL_LIMIT
    assert long.endswith("…")


def test_ordinary_text_is_untouched() -> None:
    text = "Grüße, 答えは 27, שלום, e\u0301, ❤\ufe0f [bold red]27[/] {}"
    assert clean(text) == text


def test_progress_bar_leaves_its_last_state_without_colours() -> None:
    assert as_drawn("\r 10%|\x1b[32m#\x1b[0m |\r100%|\x1b[32m##\x1b[0m|\r") == "100%|##|"
    assert as_drawn("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "link"
