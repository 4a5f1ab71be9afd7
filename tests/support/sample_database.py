"""Builds records of any size for tests, in today's schema and in those of the reference."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from grpo_protocol.database import DATABASE_NAME, migrate
from grpo_protocol.run_files import LOCK_NAME, LockNote, encode_lock_note

STARTED_AT = 1_700_000_000_000

Completion = Callable[[int, int, int], str]
"""Text of a completion from its step, batch index and group index."""


def plain_completion(step: int, batch_index: int, group_index: int) -> str:
    return f"completion {step}.{batch_index}.{group_index}"


@dataclass(frozen=True)
class Shape:
    """Size of a run: `steps` × `prompts` × `group_size` completions."""

    steps: int = 3
    prompts: int = 2
    group_size: int = 4

    @property
    def generations(self) -> int:
        return self.steps * self.prompts * self.group_size


class RecordWriter:
    """Writes a record as a trainer does: one connection, write-ahead log, a transaction a step."""

    def __init__(self, path: Path, *, wal: bool = True) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(path, isolation_level=None)
        if wal:
            self.db.execute("PRAGMA journal_mode = WAL")
        migrate(self.db)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def checkpoint(self) -> bool:
        """Empties the write-ahead log; false while a reader is in the way."""
        busy: int = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return not busy

    def close(self) -> None:
        self.checkpoint()
        self.db.close()

    def add_run(
        self,
        run_id: str = "run-1",
        *,
        name: str | None = None,
        model: str = "tiny-model",
        status: str = "completed",
        started_at: int = STARTED_AT,
    ) -> str:
        self.db.execute(
            "INSERT INTO training_runs (id, name, model_name, config, started_at, status) "
            "VALUES (?, ?, ?, '{}', ?, ?)",
            (run_id, name, model, started_at, status),
        )
        return run_id

    def add_step(
        self,
        run_id: str,
        step: int,
        shape: Shape = Shape(),
        *,
        completion: Completion = plain_completion,
        prompt: str = "What is 2 + 3?",
        state: str = "done",
    ) -> None:
        """One step in one transaction; rewards are group_index / group_size."""
        self.db.execute("BEGIN IMMEDIATE")
        cursor = self.db.execute(
            "INSERT INTO training_steps (run_id, step, epoch, loss, mean_reward, std_reward, "
            "total_tokens, metrics, state, created_at) VALUES (?, ?, 0, ?, ?, 0.5, 100, ?, ?, ?)",
            (
                run_id,
                step,
                1 / (step + 1),
                step / 1000,
                json.dumps({"completions/clipped_ratio": 0.25, "kl": None}),
                state,
                STARTED_AT + step,
            ),
        )
        place = (run_id, cursor.lastrowid)
        rows = [
            (*place, batch, member, prompt, text, text, *_scores(member, shape, step))
            for batch in range(shape.prompts)
            for member in range(shape.group_size)
            for text in [completion(step, batch, member)]
        ]
        self.db.executemany(
            "INSERT INTO generations (run_id, step_id, batch_index, group_index, prompt, "
            "completion_text, completion_raw, num_tokens, finish_reason, reward, reward_details, "
            f"advantage, token_ids, created_at) VALUES ({_marks(14)})",
            rows,
        )
        self.db.execute("COMMIT")

    def add_tool_call(self, generation_id: int, call_index: int, name: str) -> None:
        self.db.execute(
            "INSERT INTO tool_calls (generation_id, call_index, status, tool_name, arguments, "
            "raw_content) VALUES (?, ?, 'ok', ?, '{}', '<tool_call>')",
            (generation_id, call_index, name),
        )

    def add_evaluation(self, run_id: str, step: int, metrics: dict[str, float | None]) -> None:
        self.db.execute(
            "INSERT INTO evaluations (run_id, step, name, num_prompts, metrics, created_at) "
            "VALUES (?, ?, 'greedy', 200, ?, ?)",
            (run_id, step, json.dumps(metrics), STARTED_AT),
        )

    def delete_steps_after(self, run_id: str, step: int) -> None:
        """What a resume does to the steps that its checkpoint does not hold."""
        self.db.execute("BEGIN IMMEDIATE")
        later = "SELECT id FROM training_steps WHERE run_id = ? AND step > ?"
        self.db.execute(f"DELETE FROM generations WHERE step_id IN ({later})", (run_id, step))
        self.db.execute("DELETE FROM training_steps WHERE run_id = ? AND step > ?", (run_id, step))
        self.db.execute("COMMIT")


def _scores(member: int, shape: Shape, step: int) -> tuple[object, ...]:
    """From num_tokens to created_at of one completion."""
    reward = member / shape.group_size
    finish_reason = "length" if member == 0 else "stop"
    details = json.dumps({"accuracy": reward})
    return 10 + member, finish_reason, reward, details, 0.5 - member, "[1, 2, 3]", STARTED_AT + step


def build_run(
    folder: Path,
    shape: Shape = Shape(),
    *,
    run_id: str = "run-1",
    name: str | None = "first",
    status: str = "completed",
    completion: Completion = plain_completion,
    prompt: str = "What is 2 + 3?",
) -> Path:
    """A run folder with a closed record of one run; returns the path of the record."""
    path = folder / DATABASE_NAME
    with RecordWriter(path) as writer:
        writer.db.execute("PRAGMA synchronous = OFF")
        writer.add_run(run_id, name=name, status=status)
        for step in range(1, shape.steps + 1):
            writer.add_step(run_id, step, shape, completion=completion, prompt=prompt)
    return path


def lock_run(folder: Path, pid: int) -> Path:
    """The lock by which a trainer with this process id claims the folder."""
    lock = folder / LOCK_NAME
    lock.write_bytes(encode_lock_note(LockNote(pid, "2025-12-01T00:00:00+00:00")))
    return lock


def dead_pid() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


_RUNS_2025 = """CREATE TABLE training_runs (
    id TEXT PRIMARY KEY, model_name TEXT NOT NULL, model_path TEXT, config TEXT NOT NULL,
    started_at INTEGER NOT NULL, ended_at INTEGER, total_steps INTEGER DEFAULT 0,
    status TEXT DEFAULT 'running')"""
_STEPS_2025 = """CREATE TABLE training_steps (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL REFERENCES training_runs(id),
    step INTEGER NOT NULL, epoch INTEGER, loss REAL NOT NULL, mean_reward REAL NOT NULL,
    std_reward REAL NOT NULL, mean_advantage REAL, total_tokens INTEGER, generation_time_ms REAL,
    training_time_ms REAL, gradients_applied INTEGER, created_at INTEGER NOT NULL,
    UNIQUE(run_id, step))"""
_GENERATIONS = """CREATE TABLE generations (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL REFERENCES training_runs(id),
    step_id INTEGER NOT NULL REFERENCES training_steps(id), batch_index INTEGER NOT NULL,
    group_index INTEGER NOT NULL, prompt TEXT NOT NULL, expected_answer TEXT,
    completion_text TEXT NOT NULL, completion_raw TEXT NOT NULL, thinking TEXT,
    num_tokens INTEGER NOT NULL, finish_reason TEXT NOT NULL, reward REAL NOT NULL,
    created_at INTEGER NOT NULL)"""
_TOOL_CALLS = """CREATE TABLE tool_calls (
    id INTEGER PRIMARY KEY AUTOINCREMENT, generation_id INTEGER NOT NULL REFERENCES generations(id),
    call_index INTEGER NOT NULL, status TEXT NOT NULL, tool_name TEXT, arguments TEXT,
    raw_content TEXT NOT NULL, error_message TEXT)"""
_LOGS_2026 = """CREATE TABLE logs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT, level TEXT NOT NULL, target TEXT NOT NULL,
    message TEXT NOT NULL, file TEXT, line INTEGER, created_at INTEGER NOT NULL)"""
_INDEXES_2025 = (
    "CREATE INDEX idx_steps_run_step ON training_steps(run_id, step)",
    "CREATE INDEX idx_generations_step ON generations(step_id)",
    "CREATE INDEX idx_generations_reward ON generations(run_id, reward)",
    "CREATE INDEX idx_generations_finish ON generations(run_id, finish_reason)",
    "CREATE INDEX idx_tool_calls_generation ON tool_calls(generation_id)",
)
_ADDED_2026 = (
    "ALTER TABLE training_runs ADD COLUMN name TEXT",
    "ALTER TABLE training_steps ADD COLUMN std_advantage REAL DEFAULT 0",
    _LOGS_2026,
    "CREATE INDEX idx_runs_name ON training_runs(name)",
    "CREATE INDEX idx_logs_run ON logs(run_id)",
    "CREATE INDEX idx_logs_level ON logs(level)",
)


def reference_2025(path: Path, shape: Shape = Shape()) -> Path:
    """A record of the reference before it had run names, advantage spreads and logs."""
    return _reference(
        path, (_RUNS_2025, _STEPS_2025, _GENERATIONS, _TOOL_CALLS, *_INDEXES_2025), shape
    )


def reference_2026(path: Path, shape: Shape = Shape()) -> Path:
    """A record of the reference as it was in 2026."""
    tables = (_RUNS_2025, _STEPS_2025, _GENERATIONS, _TOOL_CALLS, *_INDEXES_2025, *_ADDED_2026)
    return _reference(path, tables, shape)


def _reference(path: Path, statements: Sequence[str], shape: Shape) -> Path:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.execute(
        "INSERT INTO training_runs (id, model_name, config, started_at, status) "
        "VALUES ('old-run', 'Qwen3-0.6B', '{}', ?, 'completed')",
        (STARTED_AT,),
    )
    for step in range(1, shape.steps + 1):
        cursor = db.execute(
            "INSERT INTO training_steps (run_id, step, loss, mean_reward, std_reward, created_at) "
            "VALUES ('old-run', ?, 0.5, 0.25, 0.1, ?)",
            (step, STARTED_AT + step),
        )
        step_id = cursor.lastrowid
        for batch in range(shape.prompts):
            for member in range(shape.group_size):
                db.execute(
                    "INSERT INTO generations (run_id, step_id, batch_index, group_index, prompt, "
                    "completion_text, completion_raw, num_tokens, finish_reason, reward, "
                    "created_at) VALUES ('old-run', ?, ?, ?, 'old prompt', 'old completion', "
                    "'old completion', 7, 'eos', 0.25, ?)",
                    (step_id, batch, member, STARTED_AT + step),
                )
    db.execute(
        "INSERT INTO tool_calls (generation_id, call_index, status, raw_content) "
        "VALUES (1, 0, 'ok', '<tool_call>')"
    )
    db.commit()
    db.close()
    return path


def _marks(count: int) -> str:
    return ", ".join("?" * count)
