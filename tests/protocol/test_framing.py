"""Lines out of chunks of any size."""

import random
import tracemalloc

import pytest

from grpo_protocol import MAX_RECORD_BYTES, LineSplitter, Oversized


def lines_of(*chunks: bytes, max_bytes: int = MAX_RECORD_BYTES) -> list[bytes | Oversized]:
    splitter = LineSplitter(max_bytes)
    found = [line for chunk in chunks for line in splitter.feed(chunk)]
    return found + list(splitter.flush())


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\nc", b"\n"], [b"ab", b"c"]),
        ([b"a\n", b"\n", b"b\n"], [b"a", b"", b"b"]),
        ([b"a\n\nb"], [b"a", b"", b"b"]),
        ([b"", b"a", b"", b"\n", b""], [b"a"]),
        ([b"no newline"], [b"no newline"]),
        ([b"a\r\nb\r"], [b"a\r", b"b\r"]),
        ([], []),
        ([b"\n"], [b""]),
    ],
)
def test_newlines_alone_end_a_line(chunks: list[bytes], lines: list[bytes]) -> None:
    assert lines_of(*chunks) == lines


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_what_else_unicode_calls_a_line_break_is_none(char: str) -> None:
    assert lines_of(f"a{char}b\nc\n".encode()) == [f"a{char}b".encode(), b"c"]


def test_a_character_split_between_chunks_is_joined() -> None:
    whole = "ü🙂\n".encode()
    assert lines_of(*(whole[n : n + 1] for n in range(len(whole)))) == [whole[:-1]]


def test_any_chunking_gives_the_lines_of_a_plain_split() -> None:
    chance = random.Random(0)
    for _ in range(300):
        data = bytes(chance.choices(b"ab\n\r\xff\xe2\x80\xa8", k=chance.randrange(60)))
        cuts = sorted(chance.choices(range(len(data) + 1), k=chance.randrange(8)))
        chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        expected = data.split(b"\n")
        if not expected[-1]:
            expected.pop()
        assert lines_of(*chunks) == expected, (data, cuts)


def test_the_cap_is_what_a_line_may_hold() -> None:
    assert MAX_RECORD_BYTES == 8 * 1024 * 1024
    assert lines_of(b"x" * 8 + b"\n", max_bytes=8) == [b"x" * 8]
    (found,) = lines_of(b"x" * 9 + b"\n", max_bytes=8)
    assert found == Oversized(9)
    assert isinstance(found, Oversized)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_R01_an_oversized_line_is_reported_and_the_others_stay_whole(size: int) -> None:
    data = b"before\n" + b"x" * 500 + b"\nafter\n" + b"y" * 300
    chunks = [data[n : n + size] for n in range(0, len(data), size)]
    found = lines_of(*chunks, max_bytes=100)
    assert found == [b"before", Oversized(500), b"after", Oversized(300)]
    assert [isinstance(line, Oversized) for line in found] == [False, True, False, True]


@pytest.mark.parametrize("size", [65_535, 65_536, 70_000, 5_000_000])
def test_R01_a_line_far_above_64_KiB_arrives_whole(size: int) -> None:
    data = b"x" * size + b"\nnext\n"
    chunks = [data[n : n + 65_536] for n in range(0, len(data), 65_536)]
    assert lines_of(*chunks) == [b"x" * size, b"next"]


def test_R01_a_stream_without_a_newline_costs_no_memory() -> None:
    splitter = LineSplitter()
    chunk = bytes(1 << 20)
    tracemalloc.start()
    try:
        for _ in range(200):
            assert list(splitter.feed(chunk)) == []
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_RECORD_BYTES
    finally:
        tracemalloc.stop()
    assert list(splitter.feed(b"\nPAUSE\n")) == [Oversized(200 << 20), b"PAUSE"]
