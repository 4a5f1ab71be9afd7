"""Lines to a trainer's stdin: whole, in order, or reported."""

import asyncio
import os

from grpo_tui.child.command_pipe import CommandPipe


def pipe() -> tuple[int, CommandPipe, list[tuple[int, str]]]:
    reader, writer = os.pipe()
    lost: list[tuple[int, str]] = []
    return reader, CommandPipe(os.fdopen(writer, "wb", 0), lambda *line: lost.append(line)), lost


async def test_w20_line_that_fits_only_in_parts_arrives_whole_and_in_order() -> None:
    reader, commands, lost = pipe()
    os.set_blocking(reader, False)
    long = "SET key=" + "x" * 150_000
    assert [commands.write(long), commands.write("PAUSE"), commands.write("STOP")] == [1, 2, 3]
    received = b""
    async with asyncio.timeout(20):
        while received.count(b"\n") < 3:
            try:
                received += os.read(reader, 10_000)
            except BlockingIOError:
                await asyncio.sleep(0)
    assert received.decode().split("\n") == [long, "PAUSE", "STOP", ""]
    assert lost == []
    commands.close()
    os.close(reader)


async def test_w20_lines_that_still_waited_are_reported_when_the_reader_goes() -> None:
    reader, commands, lost = pipe()
    assert commands.write("x" * 150_000) == 1
    assert commands.write("PAUSE") == 2
    os.close(reader)
    async with asyncio.timeout(20):
        while not lost:
            await asyncio.sleep(0.001)
    assert [number for number, _ in lost] == [1, 2]
    assert isinstance(commands.write("STOP"), str)


async def test_line_to_a_closed_pipe_is_refused_not_lost() -> None:
    reader, commands, lost = pipe()
    os.close(reader)
    assert isinstance(commands.write("PAUSE"), str)
    assert lost == []
