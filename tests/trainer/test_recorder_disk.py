"""The SQLite record when the disk, other writers and readers get in its way."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_protocol.database import SCHEMA_VERSION
from grpo_protocol.messages import Log
from grpo_trainer.output.database_writer import MAX_WAL_BYTES, DatabaseWriter, Work
from grpo_trainer.output.recorder import Recorder, RecorderError
from python_process import SECONDS
from recorded_runs import generation, record, recorders, rows, step, wait_until

Open = Callable[..., Recorder]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "outputs.db"


@pytest.fixture
def open_recorder(path: Path) -> Iterator[Open]:
    with recorders(path) as open_one:
        yield open_one


def test_training_does_not_wait_for_a_lock_and_loses_nothing(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    try:
        for number in range(1, 6):
            record(recorder, number)
        assert not recorder.commit(timeout=0.05), "nothing is written while the lock is held"
    finally:
        blocker.execute("ROLLBACK")
        blocker.close()
    assert recorder.commit()
    assert rows(path, "SELECT COUNT(*) FROM training_steps WHERE state = 'done'") == [(5,)]
    assert recorder.failed_writes == 0


def test_a_write_that_fails_is_counted_and_said_once_and_training_goes_on(
    path: Path, open_recorder: Open
) -> None:
    problems: list[str] = []
    recorder = open_recorder(on_problem=problems.append)
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE training_steps RENAME TO gone")
    for number in range(1, 4):
        recorder.done(step(number))
    assert not recorder.commit()
    wait_until(lambda: recorder.failed_writes == 3)
    db.execute("ALTER TABLE gone RENAME TO training_steps")
    db.close()
    recorder.done(step(4))
    recorder.commit()
    assert recorder.commit()
    assert rows(path, "SELECT step FROM training_steps") == [(4,)]
    assert len(problems) == 2
    assert "training_steps" in problems[0]
    assert str(path) in problems[0]
    assert "again" in problems[1]


def test_the_end_of_a_run_is_recorded_although_its_steps_could_not_be(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE training_steps RENAME TO gone")
    db.close()
    recorder.done(step(1))
    recorder.end("stopped", 1)
    recorder.close()
    assert rows(path, "SELECT status, total_steps FROM training_runs") == [("stopped", 1)]


def test_memory_is_bounded_when_the_disk_is_stuck(path: Path, open_recorder: Open) -> None:
    problems: list[str] = []
    recorder = open_recorder(max_queued_bytes=100_000, on_problem=problems.append)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")

    def train() -> None:
        for number in range(1, 6):
            recorder.scored(number, 1, [generation(0, completion="x" * 40_000)])

    training = threading.Thread(target=train)
    training.start()
    wait_until(lambda: any("too slow" in problem for problem in problems))
    for _ in range(1000):
        recorder.log(Log("info", "y" * 1000))
    assert recorder.dropped_logs > 900, "log lines never wait"
    assert training.is_alive(), "completions wait for room"
    blocker.execute("ROLLBACK")
    blocker.close()
    training.join(SECONDS)
    assert recorder.commit()
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(5,)]


def test_P09_the_write_ahead_file_stays_small_while_a_reader_comes_and_goes(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    wal = path.with_name("outputs.db-wal")
    largest = 0
    for number in range(1, 61):
        recorder.scored(number, 1, [generation(0, completion="x" * 1_000_000)])
        assert recorder.commit()
        cursor = reader.execute("SELECT * FROM generations")
        cursor.fetchone()
        largest = max(largest, wal.stat().st_size)
        cursor.close()
    assert largest < MAX_WAL_BYTES + 4_000_000
    recorder.close()
    assert wal.stat().st_size == 0
    reader.close()


def test_P09_a_large_write_ahead_file_is_emptied_when_the_reader_is_done(
    path: Path, open_recorder: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_trainer.output.database_writer._TRUNCATE_BUSY_MS", SECONDS * 1000)
    recorder = open_recorder()
    record(recorder, 1)
    recorder.commit()
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    cursor = reader.execute("SELECT * FROM generations")
    cursor.fetchone()
    recorder.scored(2, 1, [generation(0, completion="x" * (MAX_WAL_BYTES + 1))])
    wal = path.with_name("outputs.db-wal")
    wait_until(lambda: wal.stat().st_size > MAX_WAL_BYTES)
    cursor.close()
    wait_until(lambda: wal.stat().st_size == 0)
    reader.close()


def test_a_reader_in_the_middle_of_a_read_costs_no_row(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    record(recorder, 1)
    recorder.commit()
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    cursor = reader.execute("SELECT * FROM generations")
    cursor.fetchone()
    for number in range(2, 21):
        recorder.scored(number, 1, [generation(0, completion="x" * 1_000_000)])
    assert recorder.commit()
    assert rows(path, "SELECT COUNT(*) FROM training_steps") == [(20,)]
    cursor.close()
    reader.close()
    recorder.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


class FailingWrite:
    """A write that fails so many times with one of SQLite's errors."""

    def __init__(self, code: int, times: int) -> None:
        self.attempts = 0
        self._code = code
        self._times = times

    def __call__(self, db: sqlite3.Connection) -> None:
        self.attempts += 1
        if self.attempts <= self._times:
            error = sqlite3.OperationalError("no")
            error.sqlite_errorcode = self._code
            raise error


@pytest.mark.parametrize(
    ("code", "times", "attempts", "failed", "num_problems"),
    [
        (sqlite3.SQLITE_FULL, 3, 4, 0, 0),
        (sqlite3.SQLITE_FULL, 100, 5, 1, 2),
        (sqlite3.SQLITE_BUSY, 50, 51, 0, 1),
        (sqlite3.SQLITE_ERROR, 1, 1, 1, 2),
    ],
)
def test_what_may_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    code: int,
    times: int,
    attempts: int,
    failed: int,
    num_problems: int,
) -> None:
    monkeypatch.setattr("grpo_trainer.output.database_writer._RETRY_SECONDS", (0.0,) * 4)
    problems: list[str] = []
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    writer = DatabaseWriter(db, path, problems.append)
    write = FailingWrite(code, times)
    writer.put(Work(write, 1))
    wait_until(lambda: write.attempts == attempts)
    writer.put(Work(lambda db: None, 1))
    writer.close()
    assert (write.attempts, writer.failed_writes) == (attempts, failed)
    assert len(problems) == num_problems


def test_nothing_is_written_after_the_end(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.close()
    recorder.done(step(1))
    assert not recorder.commit()
    recorder.close()
    assert rows(path, "SELECT COUNT(*) FROM training_steps") == [(0,)]


def _no_database(path: Path) -> None:
    path.write_bytes(b"certainly no database" * 100)


def _newer(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(_no_database, "move the file away"), (_newer, "newer"), (_folder, "local_path")],
)
def test_an_unusable_database_is_refused_in_one_line(
    path: Path, open_recorder: Open, spoil: Callable[[Path], None], says: str
) -> None:
    path.parent.mkdir()
    spoil(path)
    with pytest.raises(RecorderError, match=says) as refused:
        open_recorder()
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path, open_recorder: Open) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecorderError, match="local_path"):
        open_recorder(path=tmp_path / "file" / "outputs.db")


def test_a_database_locked_by_another_writer_is_refused(
    path: Path, open_recorder: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_trainer.output.recorder.BUSY_MS", 10)
    open_recorder().close()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecorderError, match="another program"):
        open_recorder()
    blocker.close()
