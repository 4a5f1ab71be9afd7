"""Beside a living trainer and after it: what is seen, and which files come and go."""

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_tui.record.database import DatabaseReader
from record_queries import NEWEST, keys
from sample_database import (
    RecordWriter,
    build_run,
    lock_run,
)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_a_reader_sees_what_a_trainer_writes_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "outputs.db"
    lock_run(tmp_path, os.getpid())
    with RecordWriter(path) as writer:
        writer.add_run(status="running")
        writer.add_step("run-1", 1)
        async with await DatabaseReader.open(path) as reader:
            before = await reader.data_version()
            assert await reader.data_version() == before
            writer.add_step("run-1", 2)
            assert await reader.data_version() != before
            assert await reader.counts("run-1") == (2, 16)
            # The trainer is not held up by an open list.
            chunks = reader.generation_ids("run-1", NEWEST)
            assert len(await anext(chunks)) == 16
            writer.add_step("run-1", 3)
            await chunks.aclose()
            assert len(await keys(reader, NEWEST)) == 24


async def test_reading_a_finished_run_creates_no_file(tmp_path: Path) -> None:
    path = build_run(tmp_path)
    before = files(tmp_path)
    async with await DatabaseReader.open(path) as reader:
        await reader.runs()
        assert files(tmp_path) == before
    assert files(tmp_path) == before


async def test_rows_that_lie_only_in_the_log_are_read(tmp_path: Path) -> None:
    """A trainer that was killed leaves its last steps in the write-ahead log."""
    path = tmp_path / "outputs.db"
    writer = RecordWriter(path)
    writer.add_run()
    writer.add_step("run-1", 1)
    # A copy of the open files is what a kill leaves behind.
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name, content in _open_files(path).items():
        (crashed / name).write_bytes(content)
    writer.close()
    assert (crashed / "outputs.db-wal").stat().st_size > 0
    async with await DatabaseReader.open(crashed / "outputs.db") as reader:
        assert await reader.counts("run-1") == (1, 8)
    assert (crashed / "outputs.db-wal").stat().st_size > 0


def _open_files(path: Path) -> dict[str, bytes]:
    names = (path.name, f"{path.name}-wal")
    return {name: (path.parent / name).read_bytes() for name in names}


async def test_the_last_to_close_removes_side_files_once_the_trainer_has_ended(
    tmp_path: Path,
) -> None:
    path = tmp_path / "outputs.db"
    lock = lock_run(tmp_path, os.getpid())
    writer = RecordWriter(path)
    writer.add_run()
    first, second = await DatabaseReader.open(path), await DatabaseReader.open(path)
    await first.runs()
    writer.close()
    lock.unlink()
    assert await first.is_outdated()
    await first.close()
    assert sorted(files(tmp_path)) == ["outputs.db", "outputs.db-shm", "outputs.db-wal"]
    assert len(await second.runs()) == 1
    await second.close()
    assert sorted(files(tmp_path)) == ["outputs.db"]


async def test_side_files_stay_while_the_lock_is_there(tmp_path: Path) -> None:
    path = build_run(tmp_path)
    lock_run(tmp_path, os.getpid())
    async with await DatabaseReader.open(path) as reader:
        await reader.runs()
        assert not await reader.is_outdated()
    assert "outputs.db-shm" in files(tmp_path)


async def test_side_files_stay_while_another_process_has_the_record_open(tmp_path: Path) -> None:
    path = build_run(tmp_path)
    lock = lock_run(tmp_path, os.getpid())
    reader = await DatabaseReader.open(path)
    await reader.runs()
    program = textwrap.dedent(
        """
        import sqlite3, sys
        db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
        db.execute("SELECT count(*) FROM generations").fetchone()
        print("open", flush=True)
        sys.stdin.readline()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        lock.unlink()
        await reader.close()
        assert "outputs.db-shm" in files(tmp_path)
        other.communicate("\n")


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


READ_AS_NOBODY = textwrap.dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    from grpo_tui.record.database import DatabaseReader, RecordError

    os.chdir(sys.argv[1])
    if os.geteuid() == 0:
        # Nothing is forbidden to root; the standard library may be only for its eyes.
        asyncio.run(asyncio.to_thread(int))
        os.setgid(65534)
        os.setuid(65534)

    async def main():
        try:
            async with await DatabaseReader.open(Path("outputs.db")) as reader:
                print(await reader.counts("run-1"))
        except RecordError as error:
            print(error)

    asyncio.run(main())
    """
)


def leave_log(path: Path) -> None:
    """What a killed trainer leaves: its last step is in the write-ahead log only."""
    log = path.with_name("outputs.db-wal")
    writer = RecordWriter(path)
    writer.add_step("run-1", 99)
    content = log.read_bytes()
    writer.close()
    log.write_bytes(content)


@pytest.mark.fresh
@pytest.mark.parametrize("crashed", [False, True])
def test_a_folder_in_which_nobody_may_write(crashed: bool, open_to_all: Path) -> None:
    """A finished run is read there; of one that was killed the remedy is told."""
    folder = open_to_all / "run"
    path = build_run(folder)
    if crashed:
        leave_log(path)
    folder.chmod(0o555)
    before = files(folder)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_AS_NOBODY, str(folder)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        folder.chmod(0o755)
    assert done.stderr == ""
    if crashed:
        assert "copy the whole folder" in done.stdout
    else:
        assert done.stdout == "(3, 24)\n"
    assert files(folder) == before


# --- a record outside its run's folder


async def test_living_run_with_its_record_elsewhere_is_live_and_read_as_it_grows(
    tmp_path: Path,
) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    path = build_run(elsewhere, status="running")
    lock = lock_run(folder, os.getpid())
    async with await DatabaseReader.open(path, folder) as reader:
        assert [run.status for run in await reader.runs()] == ["running"]
        with RecordWriter(path) as writer:
            writer.add_step("run-1", 4)
        assert (await reader.counts("run-1"))[0] == 4
        assert not await reader.is_outdated()
        lock.unlink()
        assert [run.status for run in await reader.runs()] == ["crashed"]


async def test_run_that_is_said_to_run_is_not_taken_for_finished_while_there_is_a_log(
    tmp_path: Path,
) -> None:
    """Its lock may lie in a folder that nobody has named."""
    path = build_run(tmp_path, status="running")
    writer = RecordWriter(path)
    assert writer.checkpoint()
    async with await DatabaseReader.open(path) as reader:
        writer.add_step("run-1", 4)
        assert (await reader.counts("run-1"))[0] == 4
        assert not await reader.is_outdated()
    writer.close()
