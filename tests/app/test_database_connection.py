"""Opening a record: nothing is written, every failure is one line, and the process ends."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui.record.database import DatabaseReader, RecordError
from grpo_tui.record.database_connection import Connection, Row
from grpo_tui.record.database_filter import narrowed
from grpo_tui.record.database_rows import GenerationQuery
from record_queries import NEWEST, keys, places
from sample_database import (
    Shape,
    build_run,
    lock_run,
    reference_2025,
    reference_2026,
)


async def read_everything(path: Path) -> None:
    async with await DatabaseReader.open(path) as reader:
        await reader.runs()
        await keys(reader, NEWEST)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- older files, and files that are none


@pytest.mark.parametrize("build", [reference_2025, reference_2026])
async def test_w35_a_record_of_the_reference_is_read_and_left_as_it_is(
    build: Callable[[Path, Shape], Path], tmp_path: Path
) -> None:
    path = build(tmp_path / "old.db", Shape(steps=2, prompts=1, group_size=2))
    before = files(tmp_path)
    async with await DatabaseReader.open(path) as reader:
        (run,) = await reader.runs()
        assert (run.id, run.name, run.status) == ("old-run", None, "completed")
        (step, *_) = (await reader.steps(await reader.step_ids("old-run"))).values()
        assert (step.loss, step.gradient_norm, step.metrics) == (0.5, None, {})
        assert step.state == "done"
        assert len(await places(reader, GenerationQuery(step=1), "old-run")) == 2
        assert await keys(reader, narrowed(NEWEST, "adv>0"), "old-run") == []
        detail = await reader.generation(1)
        assert detail is not None
        assert (detail.advantage, detail.reward_details, detail.reward) == (None, {}, 0.25)
        assert len(detail.tool_calls) == 1
        assert await reader.evaluations("old-run") == []
    assert files(tmp_path) == before


def _text_file(folder: Path) -> Path:
    path = folder / "outputs.db"
    path.write_text("this is a text file, and a rather long one at that\n" * 100)
    return path


def _empty_file(folder: Path) -> Path:
    path = folder / "outputs.db"
    path.touch()
    return path


def _other_database(folder: Path) -> Path:
    path = folder / "outputs.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE songs (title TEXT)")
    db.commit()
    db.close()
    return path


def _newer(folder: Path) -> Path:
    path = build_run(folder)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    return path


def _damaged(folder: Path) -> Path:
    path = build_run(folder, Shape(steps=50))
    content = path.read_bytes()
    # The page that holds the tables' definitions stays whole; all others are noise.
    path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    return path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_text_file, "is no SQLite database"),
        (_empty_file, "holds no training runs"),
        (_other_database, "holds no training runs"),
        (_newer, "schema 99.*upgrade grpo-tui"),
        (_damaged, "damaged"),
        (lambda folder: folder / "outputs.db", "no such file"),
        (lambda folder: folder, "is a folder"),
    ],
    ids=["text", "empty", "other", "newer", "damaged", "missing", "folder"],
)
async def test_what_cannot_be_read_is_said_in_one_line(
    make: Callable[[Path], Path], says: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(RecordError, match=says) as caught:
        await read_everything(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


async def test_a_locked_record_is_said_in_one_line_and_read_later(tmp_path: Path) -> None:
    path = build_run(tmp_path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = DELETE")
    lock_run(tmp_path, os.getpid())
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RecordError, match="locked by another program"):
        await DatabaseReader.open(path)
    writer.execute("COMMIT")
    writer.close()
    async with await DatabaseReader.open(path) as reader:
        assert len(await reader.runs()) == 1


async def test_the_reader_cannot_write(tmp_path: Path) -> None:
    connection = await Connection.open(build_run(tmp_path))
    with pytest.raises(RecordError, match="readonly"):
        await connection.fetch("DELETE FROM generations")
    await connection.close()


# --- cancelling, and the end of the process

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


async def endless(connection: Connection) -> "asyncio.Task[list[Row]]":
    """A question without an end, which SQLite has begun to answer."""
    runs = threading.Event()

    def go_on() -> int:
        runs.set()
        return 0

    # Called every so many instructions of a query.
    await connection._database.set_progress_handler(go_on, 100)
    task = asyncio.create_task(connection.fetch(ENDLESS))
    assert await asyncio.to_thread(runs.wait, 10)
    return task


async def test_a_cancelled_question_stops_and_the_next_is_answered(tmp_path: Path) -> None:
    connection = await Connection.open(build_run(tmp_path))
    task = await endless(connection)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert await connection.fetch("SELECT count(*) FROM training_runs") == [(1,)]
    await connection.close()


async def test_a_list_cancelled_at_any_moment_leaves_the_connection_usable(tmp_path: Path) -> None:
    connection = await Connection.open(build_run(tmp_path, Shape(20, 4, 8)))

    async def read_all() -> None:
        async for _ in connection.stream("SELECT id FROM generations"):
            pass

    for turns in range(60):
        task = asyncio.create_task(read_all())
        for _ in range(turns % 12):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert await connection.fetch("SELECT count(*) FROM generations") == [(640,)]
    await connection.close()


async def test_closing_ends_a_question_that_runs(tmp_path: Path) -> None:
    connection = await Connection.open(build_run(tmp_path))
    task = await endless(connection)
    await asyncio.wait_for(connection.close(), 10)
    with pytest.raises(RecordError, match="interrupted"):
        await task


@pytest.mark.fresh
@pytest.mark.parametrize(
    "ending", ["await reader.close()", "pass", "sys.exit(3)", "raise RuntimeError"]
)
def test_r08_the_process_ends_by_itself(ending: str, tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import asyncio, sys
        from pathlib import Path
        from grpo_tui.record.database import DatabaseReader

        async def main():
            reader = await DatabaseReader.open(Path(sys.argv[1]))
            print(len(await reader.runs()), flush=True)
            {ending}

        asyncio.run(main())
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(build_run(tmp_path))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "1\n"
    assert done.returncode == {"sys.exit(3)": 3, "raise RuntimeError": 1}.get(ending, 0)
