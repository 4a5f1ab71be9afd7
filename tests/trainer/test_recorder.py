"""The SQLite record: every step and completion, whatever values, disk and other readers do."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from grpo_protocol.config import GRPOConfig
from grpo_protocol.database import SCHEMA_VERSION
from grpo_protocol.messages import Eval, Generation, Log, Step, ToolCall
from grpo_trainer.database_writer import MAX_WAL_BYTES, DatabaseWriter, Work
from grpo_trainer.recorder import NullRecorder, Recorder, RecorderError
from python_process import SECONDS

Open = Callable[..., Recorder]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "outputs.db"


@pytest.fixture
def open_recorder(path: Path) -> Iterator[Open]:
    opened: list[Recorder] = []

    def open_one(**options: Any) -> Recorder:
        values: dict[str, Any] = {
            "run_id": None,
            "run_name": "a run",
            "model_name": "tiny",
            "model_path": "/models/tiny",
            "config": GRPOConfig(model="/models/tiny", group_size=8),
            "resume_after_step": None,
        }
        recorder = Recorder.open(options.pop("path", path), **(values | options))
        opened.append(recorder)
        return recorder

    yield open_one
    for recorder in opened:
        recorder.close()


def generation(index: int, **fields: Any) -> Generation:
    values: dict[str, Any] = {
        "prompt": "2+3=",
        "completion": f"completion {index}",
        "reward": float(index),
        "tokens": 7,
        "prompt_index": index // 2,
        "group_index": index % 2,
        "finish_reason": "stop",
    }
    return Generation(index=index, **(values | fields))


def step(number: int, **fields: Any) -> Step:
    return Step(step=number, **({"loss": 0.5, "total_tokens": 28} | fields))


def record(recorder: Recorder, number: int, **fields: Any) -> None:
    recorder.scored(number, 1, [generation(index) for index in range(4)])
    recorder.done(step(number, **fields))


def rows(path: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return db.execute(query, values).fetchall()
    finally:
        db.close()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_run_is_whole_in_one_file(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    for number in range(1, 11):
        record(recorder, number)
    recorder.end("completed", 10)
    recorder.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["outputs.db"]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(path, "SELECT step, state FROM training_steps ORDER BY step") == [
        (number, "done") for number in range(1, 11)
    ]
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(40,)]
    (run,) = rows(
        path,
        "SELECT id, name, model_name, model_path, config, total_steps, status,"
        " started_at <= ended_at FROM training_runs",
    )
    assert run[:4] == (recorder.run_id, "a run", "tiny", "/models/tiny")
    assert msgspec.json.decode(run[4], type=GRPOConfig).group_size == 8
    assert run[5:] == (10, "completed", 1)


def test_everything_known_of_a_completion_is_kept(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    call = ToolCall("invalid_json", "search", '{"q":', "<tool_call>", "cut off")
    recorder.scored(
        1,
        2,
        [
            generation(
                1,
                prompt_index=3,
                advantage=-0.5,
                reward=0.25,
                reward_details={"format": 0.5, "answer": None},
                expected_answer="5",
                thinking="hm",
                tool_calls=[call],
                token_ids=[1, 2, 3],
                completion="<think>hm</think>5",
            )
        ],
        texts=["5"],
    )
    recorder.close()
    assert rows(
        path,
        "SELECT batch_index, group_index, prompt, expected_answer, completion_text,"
        " completion_raw, thinking, num_tokens, finish_reason, reward, reward_details, advantage,"
        " token_ids FROM generations",
    ) == [
        (
            *(3, 1, "2+3=", "5", "5", "<think>hm</think>5", "hm", 7, "stop", 0.25),
            *('{"format":0.5,"answer":null}', -0.5, "[1,2,3]"),
        )
    ]
    assert rows(
        path,
        "SELECT call_index, status, tool_name, arguments, raw_content, error_message"
        " FROM tool_calls",
    ) == [(0, "invalid_json", "search", '{"q":', "<tool_call>", "cut off")]


def test_R32_samples_and_rewards_are_kept_when_the_update_fails(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    recorder.scored(3, 1, [generation(index) for index in range(4)])
    recorder.end("crashed", 2)
    recorder.close()
    assert rows(path, "SELECT step, state, loss, mean_reward, epoch FROM training_steps") == [
        (3, "scored", None, 1.5, 1)
    ]
    ((std,),) = rows(path, "SELECT std_reward FROM training_steps")
    assert std == pytest.approx(1.2909944)  # ddof 1
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(4,)]
    assert rows(path, "SELECT status, total_steps FROM training_runs") == [("crashed", 2)]


def test_W38_epoch_total_steps_memory_and_gradient_norm_are_kept_while_running(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    record(
        recorder,
        4,
        epoch=2,
        gradient_norm=0.75,
        peak_memory_mb=12.5,
        active_memory_mb=3.5,
        metrics={"kl": 0.1},
    )
    assert recorder.commit()
    assert rows(
        path,
        "SELECT epoch, gradient_norm, peak_memory_mb, active_memory_mb, metrics"
        " FROM training_steps",
    ) == [(2, 0.75, 12.5, 3.5, '{"kl":0.1}')]
    assert rows(path, "SELECT total_steps, status, ended_at FROM training_runs") == [
        (4, "running", None)
    ]


def test_the_epoch_of_the_scored_step_stays_when_the_update_does_not_tell_it(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    recorder.scored(1, 5, [generation(0)])
    recorder.done(step(1))
    assert recorder.commit()
    assert rows(path, "SELECT epoch, mean_reward, loss FROM training_steps") == [(5, 0.0, 0.5)]


def test_W39_W43_token_counts_and_finish_reasons_are_those_of_the_completion(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder()
    reasons = ["stop", "length", "repetition"]
    recorder.scored(
        1,
        1,
        [generation(i, tokens=10 + i, finish_reason=reason) for i, reason in enumerate(reasons)],
    )
    assert recorder.commit()
    assert rows(path, "SELECT num_tokens, finish_reason FROM generations ORDER BY id") == [
        (10, "stop"),
        (11, "length"),
        (12, "repetition"),
    ]


def test_W40_a_step_whose_numbers_are_not_finite_keeps_its_row(
    path: Path, open_recorder: Open
) -> None:
    nan, inf = float("nan"), float("inf")
    recorder = open_recorder()
    recorder.scored(
        1,
        1,
        [
            generation(0, reward=nan, advantage=nan, reward_details={"a": nan}),
            generation(1, reward=None),
            generation(2, reward=-inf),
            generation(3, reward=2.0, tokens=2**70),
        ],
    )
    recorder.done(step(1, loss=nan, gradient_norm=inf, metrics={"kl": nan}))
    assert recorder.commit()
    assert recorder.failed_writes == 0
    assert rows(path, "SELECT loss, gradient_norm, metrics, mean_reward FROM training_steps") == [
        (None, None, '{"kl":null}', 2.0)
    ]
    assert rows(path, "SELECT reward, num_tokens FROM generations ORDER BY id") == [
        (None, 7),
        (None, 7),
        (None, 7),
        (2.0, 2**63 - 1),
    ]


def test_R07_text_that_has_no_utf8_form_is_kept_with_replacements(
    path: Path, open_recorder: Open
) -> None:
    recorder = open_recorder(config=GRPOConfig(model="caf\udce9"), run_name="n\ud800")
    recorder.scored(
        1,
        1,
        [generation(0, completion="a\ud83d\x00\x1b[2J", reward_details={"r\ud83d": 1.0})],
    )
    recorder.log(Log("info", "l\ud83d"))
    assert recorder.commit()
    assert rows(path, "SELECT completion_raw, reward_details FROM generations") == [
        ("a\ufffd\x00\x1b[2J", '{"r\ufffd":1.0}')
    ]
    assert rows(path, "SELECT message FROM logs") == [("l\ufffd",)]
    ((name, config),) = rows(path, "SELECT name, config FROM training_runs")
    assert name == "n\ufffd"
    assert msgspec.json.decode(config, type=GRPOConfig).model == "caf\ufffd"


def test_logs_evaluations_and_settings(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.log(Log("warn", "careful", "reward"))
    recorder.evaluation(Eval(2, "held-out", 200, {"accuracy": 0.5, "kl": float("nan")}))
    recorder.setting(3, "temperature", "0.7")
    assert recorder.commit()
    assert rows(path, "SELECT run_id, level, target, message FROM logs") == [
        (recorder.run_id, "warn", "reward", "careful")
    ]
    assert rows(path, "SELECT step, name, num_prompts, metrics FROM evaluations") == [
        (2, "held-out", 200, '{"accuracy":0.5,"kl":null}')
    ]
    assert rows(path, "SELECT step, key, value FROM setting_changes") == [(3, "temperature", "0.7")]


def test_R17_a_resumed_run_keeps_its_id_and_holds_each_step_once(
    path: Path, open_recorder: Open
) -> None:
    first = open_recorder()
    other = open_recorder(run_name="another run")
    record(other, 9)
    for number in range(1, 13):
        record(first, number)
        first.evaluation(Eval(number, "held-out", 1, {}))
        first.setting(number, "seed", "1")
        first.commit()
    first.end("crashed", 12)
    for recorder in (first, other):
        recorder.close()

    again = open_recorder(run_id=first.run_id, resume_after_step=8)
    assert again.run_id == first.run_id
    mine = "FROM training_steps WHERE run_id = ? ORDER BY step"
    assert [s for (s,) in rows(path, f"SELECT step {mine}", first.run_id)] == list(range(1, 9))
    assert rows(path, "SELECT status, ended_at, total_steps FROM training_runs LIMIT 1") == [
        ("running", None, 8)
    ]
    for table in ("evaluations", "setting_changes"):
        assert rows(path, f"SELECT COUNT(*), MAX(step) FROM {table}") == [(8, 8)]
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(8 * 4 + 4,)]
    record(again, 9)
    again.commit()
    assert rows(path, f"SELECT COUNT(*) {mine}", first.run_id) == [(9,)]
    assert rows(path, "SELECT COUNT(*) FROM training_runs") == [(2,)]


def test_resuming_removes_what_was_logged_after_that_step(path: Path, open_recorder: Open) -> None:
    first = open_recorder()
    for number in (1, 2):
        first.log(Log("info", f"before the end of {number}"))
        first.commit()
        time.sleep(0.002)  # times are kept in milliseconds
        record(first, number)
        first.commit()
        time.sleep(0.002)
    first.close()
    open_recorder(run_id=first.run_id, resume_after_step=1)
    assert rows(path, "SELECT message FROM logs") == [("before the end of 1",)]


def test_a_run_that_the_file_does_not_know_goes_on_under_its_id(
    path: Path, open_recorder: Open
) -> None:
    open_recorder(run_id="an earlier id", resume_after_step=4)
    assert rows(path, "SELECT id, total_steps FROM training_runs") == [("an earlier id", 4)]


def test_a_step_recorded_again_replaces_the_first_attempt(path: Path, open_recorder: Open) -> None:
    recorder = open_recorder()
    recorder.scored(1, 1, [generation(0, tool_calls=[ToolCall("ok")])])
    record(recorder, 1)
    assert recorder.commit()
    assert rows(path, "SELECT COUNT(*) FROM training_steps") == [(1,)]
    assert rows(path, "SELECT COUNT(*) FROM generations") == [(4,)]
    assert rows(path, "SELECT COUNT(*) FROM tool_calls") == [(0,)]


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
    monkeypatch.setattr("grpo_trainer.database_writer._TRUNCATE_BUSY_MS", SECONDS * 1000)
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
    monkeypatch.setattr("grpo_trainer.database_writer._RETRY_SECONDS", (0.0,) * 4)
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
    monkeypatch.setattr("grpo_trainer.recorder.BUSY_MS", 10)
    open_recorder().close()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecorderError, match="another program"):
        open_recorder()
    blocker.close()


def test_recording_can_be_off() -> None:
    recorder: Recorder | NullRecorder = NullRecorder()
    recorder.scored(1, 1, [generation(0)])
    recorder.done(step(1))
    recorder.log(Log("info", "x"))
    recorder.evaluation(Eval(1, "x", 1, {}))
    recorder.setting(1, "a", "b")
    assert recorder.commit()
    recorder.end("completed", 1)
    recorder.close()
    assert recorder.run_id is None
