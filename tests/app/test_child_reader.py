"""Bytes to events without holding up the screen, and levels for lines that name none."""

import asyncio

import pytest

from grpo_protocol.framing import Oversized
from grpo_protocol.messages import Log
from grpo_tui.child.child_reader import (
    CHUNK_BYTES,
    guess_level,
    read_stream,
    stderr_items,
    stdout_items,
)
from grpo_tui.notices import InvalidUtf8, Item


async def test_buffered_flood_gives_the_event_loop_a_turn_after_each_chunk() -> None:
    stream = asyncio.StreamReader(limit=2**26)
    stream.feed_data(b'{"type":"log","level":"info","message":"flood"}\n' * 100_000)
    stream.feed_eof()
    items: list[Item] = []
    reading = asyncio.create_task(read_stream(stream, stdout_items, items.append))
    most = seen = 0
    while not reading.done():
        await asyncio.sleep(0)
        most, seen = max(most, len(items) - seen), len(items)
    assert len(items) == 100_000
    assert most <= CHUNK_BYTES // len(b'{"type":"log","level":"info","message":"flood"}\n') + 1


async def test_last_line_without_a_newline_counts() -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(b'{"type":"log","level":"info","message":"last words"}')
    stream.feed_eof()
    items: list[Item] = []
    await read_stream(stream, stdout_items, items.append)
    assert items == [Log("info", "last words")]


def test_blank_lines_are_left_out() -> None:
    assert list(stdout_items(b"  ")) == []
    assert list(stderr_items(b"\r\n")) == []


def test_oversized_lines_are_told_on_both_streams() -> None:
    assert list(stdout_items(Oversized(9))) == [Oversized(9)]
    assert list(stderr_items(Oversized(9))) == [Oversized(9)]


def test_bad_bytes_on_stderr_are_replaced_and_told() -> None:
    assert list(stderr_items(b"caf\xe9")) == [
        InvalidUtf8("stderr"),
        Log("warn", "caf\ufffd", "stderr"),
    ]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2025-01-01 INFO mlx: loaded", "info"),
        ("[debug] cache", "debug"),
        ("UserWarning: odd", "warn"),
        ("WARNING: slow", "warn"),
        ("Traceback (most recent call last):", "error"),
        ("ValueError: bad", "error"),
        ("numpy.linalg.LinAlgError: singular", "error"),
        ("CRITICAL: out of memory", "error"),
        ("something without a level", "warn"),
        ("the information desk", "warn"),
    ],
)
def test_level_of_a_line_on_stderr(line: str, level: str) -> None:
    assert guess_level(line) == level
