"""Reading a record: honest rows, nothing written, every failure one line, the process ends."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_tui.database import DatabaseReader, RecordError
from grpo_tui.database_connection import Connection
from grpo_tui.database_filter import narrowed
from grpo_tui.database_rows import Bound, GenerationQuery
from sample_database import (
    RecordWriter,
    Shape,
    build_run,
    dead_pid,
    lock_run,
    reference_2025,
    reference_2026,
)

NEWEST = GenerationQuery()


async def keys(reader: DatabaseReader, query: GenerationQuery, run_id: str = "run-1") -> list[int]:
    return [key async for chunk in reader.generation_ids(run_id, query) for key in chunk]


async def places(
    reader: DatabaseReader, query: GenerationQuery, run_id: str = "run-1"
) -> list[tuple[int, int, int]]:
    found = await keys(reader, query, run_id)
    rows = await reader.generations(found)
    return [(rows[key].step, rows[key].batch_index, rows[key].group_index) for key in found]


async def read_everything(path: Path) -> None:
    async with await DatabaseReader.open(path) as reader:
        await reader.runs()
        await keys(reader, NEWEST)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- rows


async def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    async with await DatabaseReader.open(build_run(tmp_path, Shape(steps=5))) as reader:
        ids = await reader.step_ids("run-1")
        steps = await reader.steps(ids)
        assert [steps[key].step for key in ids] == [5, 4, 3, 2, 1]
        newest = steps[ids[0]]
        assert newest.loss == pytest.approx(1 / 6)
        assert newest.mean_reward == 0.005
        assert newest.metrics == {"completions/clipped_ratio": 0.25, "kl": None}
        assert newest.gradient_norm is None
        assert newest.state == "done"


async def test_a_series_of_steps_is_oldest_first_and_can_go_on_where_it_ended(
    tmp_path: Path,
) -> None:
    async with await DatabaseReader.open(build_run(tmp_path, Shape(steps=6))) as reader:
        chunks = [chunk async for chunk in reader.step_series("run-1", after_step=2)]
        assert [step.step for chunk in chunks for step in chunk] == [3, 4, 5, 6]
        assert await reader.counts("run-1") == (6, 48)


async def test_completions_of_a_step_are_in_the_order_of_the_batch(tmp_path: Path) -> None:
    shape = Shape(steps=3, prompts=2, group_size=3)
    async with await DatabaseReader.open(build_run(tmp_path, shape)) as reader:
        expected = [(2, batch, member) for batch in range(2) for member in range(3)]
        assert await places(reader, GenerationQuery(step=2)) == expected


async def test_completions_of_a_run_can_be_in_each_order(tmp_path: Path) -> None:
    shape = Shape(steps=2, prompts=1, group_size=2)
    async with await DatabaseReader.open(build_run(tmp_path, shape)) as reader:
        newest = [(2, 0, 0), (2, 0, 1), (1, 0, 0), (1, 0, 1)]
        assert await places(reader, NEWEST) == newest
        assert await places(reader, GenerationQuery("oldest")) == newest[2:] + newest[:2]
        best = await places(reader, GenerationQuery("best"))
        assert [member for _, _, member in best] == [1, 1, 0, 0]
        worst = await places(reader, GenerationQuery("worst"))
        assert [member for _, _, member in worst] == [0, 0, 1, 1]


async def test_an_unknown_reward_is_last_in_both_orders(tmp_path: Path) -> None:
    path = build_run(tmp_path, Shape(steps=1, prompts=1, group_size=3))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE generations SET reward = NULL WHERE group_index = 1")
    db.close()
    async with await DatabaseReader.open(path) as reader:
        assert (await places(reader, GenerationQuery("best")))[-1] == (1, 0, 1)
        assert (await places(reader, GenerationQuery("worst")))[-1] == (1, 0, 1)
        assert await places(reader, GenerationQuery("worst", step=1)) == [
            (1, 0, 0),
            (1, 0, 2),
            (1, 0, 1),
        ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reward<0.5", {0, 1}),
        ("reward>=0.5", {2, 3}),
        ("reward=0.25", {1}),
        ("reward>0.1 reward<=0.5", {1, 2}),
        ("fin:len", {0}),
        ("tok>11", {2, 3}),
        ("adv>0", {0}),
        ("adv<-1.0", {2, 3}),
        ("2.0.3", {3}),
        ("completion reward>0.6", {3}),
    ],
)
async def test_a_filter_narrows_the_completions(
    text: str, expected: set[int], tmp_path: Path
) -> None:
    path = build_run(tmp_path, Shape(steps=2, prompts=1, group_size=4))
    async with await DatabaseReader.open(path) as reader:
        query = narrowed(GenerationQuery(step=2), text)
        assert {member for _, _, member in await places(reader, query)} == expected
        assert await places(reader, narrowed(query, "")) == [(2, 0, n) for n in range(4)]


async def test_a_filter_by_step_works_in_each_order(tmp_path: Path) -> None:
    async with await DatabaseReader.open(build_run(tmp_path, Shape(steps=9))) as reader:
        for order in ("newest", "oldest", "best", "worst"):
            query = narrowed(GenerationQuery(order), "step:4..6")
            assert {step for step, _, _ in await places(reader, query)} == {4, 5, 6}
        assert {s for s, _, _ in await places(reader, narrowed(NEWEST, "step:7"))} == {7}


@pytest.mark.parametrize("wildcard", ["50%", "a_b", "\\", "'", '"', "%"])
async def test_w42_what_is_searched_is_taken_literally(wildcard: str, tmp_path: Path) -> None:
    def completion(step: int, batch: int, member: int) -> str:
        return f"x{wildcard}y" if member == 1 else "x50 axb y"

    path = build_run(tmp_path, Shape(1, 1, 2), completion=completion)
    async with await DatabaseReader.open(path) as reader:
        assert await places(reader, GenerationQuery(words=(wildcard,))) == [(1, 0, 1)]


async def test_a_list_gets_beginnings_and_the_detail_everything(tmp_path: Path) -> None:
    text = "long " * 200_000
    path = build_run(tmp_path, Shape(1, 1, 1), completion=lambda *_: text)
    with RecordWriter(path) as writer:
        writer.add_tool_call(1, 1, "second")
        writer.add_tool_call(1, 0, "first")
    async with await DatabaseReader.open(path) as reader:
        row = (await reader.generations([1]))[1]
        assert text.startswith(row.completion)
        assert len(row.completion) < 1000
        detail = await reader.generation(1)
        assert detail is not None
        assert detail.completion_text == text
        assert detail.reward_details == {"accuracy": 0.0}
        assert detail.token_ids == (1, 2, 3)
        assert [call.tool_name for call in detail.tool_calls] == ["first", "second"]
        assert await reader.generation(2) is None


async def test_hostile_values_become_unknown_instead_of_errors(tmp_path: Path) -> None:
    path = build_run(tmp_path, Shape(1, 1, 1))
    db = sqlite3.connect(path)
    db.execute(
        "UPDATE generations SET reward = 'high', num_tokens = 'many', reward_details = '[1]', "
        "token_ids = '{', completion_text = CAST(x'61ff62' AS TEXT), prompt = x'ff00'"
    )
    db.execute(f"UPDATE training_steps SET metrics = '{'[' * 100_000}', loss = 9e999")
    db.commit()
    db.close()
    async with await DatabaseReader.open(path) as reader:
        detail = await reader.generation(1)
        assert detail is not None
        assert (detail.reward, detail.num_tokens) == (None, 0)
        assert (detail.reward_details, detail.token_ids) == ({}, ())
        assert detail.completion_text == "a\ufffdb"
        assert (await reader.generations([1]))[1].completion == "a\ufffdb"
        step = (await reader.steps([1]))[1]
        assert step.metrics == {}
        assert step.loss == float("inf")


async def test_evaluations_are_in_order(tmp_path: Path) -> None:
    path = build_run(tmp_path)
    with RecordWriter(path) as writer:
        writer.add_evaluation("run-1", 3, {"accuracy": 0.8})
        writer.add_evaluation("run-1", 0, {"accuracy": None})
    async with await DatabaseReader.open(path) as reader:
        found = await reader.evaluations("run-1")
    assert [(row.step, row.metrics) for row in found] == [
        (0, {"accuracy": None}),
        (3, {"accuracy": 0.8}),
    ]


# --- runs and their status


async def test_runs_are_newest_first_with_their_last_step(tmp_path: Path) -> None:
    path = build_run(tmp_path, Shape(steps=4), name="early")
    with RecordWriter(path) as writer:
        writer.add_run("run-2", name="late", started_at=1_800_000_000_000, status="stopped")
    async with await DatabaseReader.open(path) as reader:
        late, early = await reader.runs()
    assert (late.name, late.status, late.steps, late.last_step) == ("late", "stopped", 0, None)
    assert (early.name, early.steps, early.last_step, early.last_reward) == ("early", 4, 4, 0.004)


@pytest.mark.parametrize(
    ("lock", "status"), [("living", "running"), ("dead", "crashed"), ("absent", "crashed")]
)
async def test_a_running_run_without_its_trainer_has_crashed(
    lock: str, status: str, tmp_path: Path
) -> None:
    path = build_run(tmp_path, status="running")
    if lock != "absent":
        lock_run(tmp_path, os.getpid() if lock == "living" else dead_pid())
    async with await DatabaseReader.open(path) as reader:
        assert [run.status for run in await reader.runs()] == [status]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": -1}', '{"pid": 1e99}'])
async def test_a_lock_that_says_nothing_is_no_trainer(text: str, tmp_path: Path) -> None:
    path = build_run(tmp_path, status="running")
    (tmp_path / "run.lock").write_text(text)
    async with await DatabaseReader.open(path) as reader:
        assert [run.status for run in await reader.runs()] == ["crashed"]


async def test_only_the_newest_run_of_a_folder_can_be_the_living_one(tmp_path: Path) -> None:
    path = build_run(tmp_path, status="running")
    with RecordWriter(path) as writer:
        writer.add_run("run-2", status="running", started_at=1_800_000_000_000)
    lock_run(tmp_path, os.getpid())
    async with await DatabaseReader.open(path) as reader:
        assert [run.status for run in await reader.runs()] == ["running", "crashed"]


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


# --- beside a living trainer


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
            await chunks.aclose()  # type: ignore[attr-defined]
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
    assert first.is_outdated
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
        assert not reader.is_outdated
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


# --- cancelling, and the end of the process

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


async def test_a_cancelled_question_stops_and_the_next_is_answered(tmp_path: Path) -> None:
    connection = await Connection.open(build_run(tmp_path))
    task = asyncio.create_task(connection.fetch(ENDLESS))
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert await connection.fetch("SELECT count(*) FROM training_runs") == [(1,)]
    await connection.close()


async def test_closing_ends_a_question_that_runs(tmp_path: Path) -> None:
    connection = await Connection.open(build_run(tmp_path))
    task = asyncio.create_task(connection.fetch(ENDLESS))
    await asyncio.sleep(0.05)
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
        from grpo_tui.database import DatabaseReader

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


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.fresh
@pytest.mark.parametrize("crashed", [False, True])
def test_a_folder_in_which_nobody_may_write(crashed: bool, open_to_all: Path) -> None:
    """A finished run is read there; of one that was killed the remedy is told."""
    folder = open_to_all / "run"
    path = build_run(folder)
    if crashed:
        writer = RecordWriter(path)
        writer.add_step("run-1", 99)
        log = (folder / "outputs.db-wal").read_bytes()
        writer.close()
        (folder / "outputs.db-wal").write_bytes(log)
    program = textwrap.dedent(
        """
        import asyncio, os, sys
        from pathlib import Path
        from grpo_tui.database import DatabaseReader, RecordError

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
    folder.chmod(0o555)
    before = files(folder)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder)],
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


def test_a_bound_that_no_row_can_meet_is_no_error() -> None:
    assert narrowed(NEWEST, "reward<-1e5 step:9..1").bounds == (
        Bound("step", ">=", 9),
        Bound("step", "<=", 1),
    )
