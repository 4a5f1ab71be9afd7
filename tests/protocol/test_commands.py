"""The lines that a trainer reads."""

import random

import pytest

from grpo_protocol import format_command, parse_command
from grpo_protocol.commands import (
    Answer,
    BadCommand,
    Command,
    Pause,
    Resume,
    SaveCheckpoint,
    Set,
    Stop,
    command_name,
)

LINES: list[tuple[str, Command]] = [
    ("PAUSE", Pause()),
    ("RESUME", Resume()),
    ("SAVE_CHECKPOINT", SaveCheckpoint()),
    ("STOP", Stop()),
    ("SET sample_display=best_worst", Set("sample_display", "best_worst")),
    ("SET run_name=a=b", Set("run_name", "a=b")),
    ("SET run_name=", Set("run_name", "")),
    ("PROMPT:id-1:yes", Answer("id-1", ("yes",))),
    ("PROMPT:id-1:a,b", Answer("id-1", ("a", "b"))),
    ("PROMPT:id-1:", Answer("id-1", ())),
    ("PROMPT:id-1:10:30", Answer("id-1", ("10:30",))),
]


@pytest.mark.parametrize(("line", "command"), LINES)
def test_lines_and_commands(line: str, command: Command) -> None:
    assert parse_command(line) == command
    assert format_command(command) == line


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (" PAUSE \r", Pause()),
        ("SET  temperature = 0.5 ", Set("temperature", "0.5")),
        ("\tSTOP", Stop()),
    ],
)
def test_space_around_does_not_count(line: str, command: Command) -> None:
    assert parse_command(line) == command


@pytest.mark.parametrize(
    "line",
    [
        "pause",
        "FOO",
        "",
        "SET",
        "SET a",
        "SET =1",
        "PROMPT:",
        "PROMPT:id",
        "PROMPT::x",
        "PAUSE now",
    ],
)
def test_W21_what_is_no_command_is_a_value_with_a_message(line: str) -> None:
    found = parse_command(line)
    assert isinstance(found, BadCommand)
    assert found.line == line.strip()
    assert found.message
    assert "\n" not in found.message


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("pause", "PAUSE"),
        ("RESMUE", "RESUME"),
        ("SAVECHECKPOINT", "SAVE_CHECKPOINT"),
        ("stop", "STOP"),
    ],
)
def test_a_misspelt_word_is_suggested(line: str, word: str) -> None:
    found = parse_command(line)
    assert isinstance(found, BadCommand)
    assert f"did you mean {word}?" in found.message


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("SAVE", "did you mean SAVE_CHECKPOINT?"),
        ("SET", "SET needs key=value"),
        ("SET ", "SET needs key=value"),
    ],
)
def test_a_word_cut_short_is_understood_as_such(line: str, remedy: str) -> None:
    found = parse_command(line)
    assert isinstance(found, BadCommand)
    assert remedy in found.message


def test_W22_an_answer_survives_whatever_it_holds() -> None:
    chance = random.Random(0)
    for _ in range(500):
        values = tuple(
            "".join(chance.choices("a,%:\n\r2C05A =ü\u2028", k=chance.randrange(1, 9)))
            for _ in range(chance.randrange(1, 4))
        )
        answer = Answer("id-1", values)
        line = format_command(answer)
        assert "\n" not in line
        assert "\r" not in line
        assert parse_command(line) == answer


@pytest.mark.parametrize("values", [(" padded ",), ("", ""), ("tab\t",), ("\u2028",), (" ",)])
def test_W22_an_answer_keeps_the_space_at_its_ends(values: tuple[str, ...]) -> None:
    answer = Answer("id-1", values)
    assert parse_command(format_command(answer)) == answer


@pytest.mark.parametrize(
    "command", [Set("a=b", "c"), Set("a", "b\nSTOP"), Answer("a:b", ("c",)), Answer("a\nSTOP", ())]
)
def test_what_a_line_cannot_carry_is_refused(command: Command) -> None:
    with pytest.raises(ValueError, match=r"cannot carry|may not hold"):
        format_command(command)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (Pause(), "PAUSE"),
        (Set("temperature", "0.5"), "SET temperature"),
        (Answer("id-1", ("secret",)), "PROMPT:id-1"),
        (BadCommand("x" * 500, ""), "x" * 80),
    ],
)
def test_names_are_short_and_tell_no_value(command: Command | BadCommand, name: str) -> None:
    assert command_name(command) == name
