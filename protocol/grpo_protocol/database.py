"""The SQLite record of a run: its tables, and how older files become current.

Tables and columns keep the names of the mlx-node output store, whose files open here. Migrations
are append-only; `PRAGMA user_version` counts those applied. Times are Unix milliseconds. What may
be unknown, such as a loss that was not finite, is NULL.
"""

import sqlite3
from collections.abc import Callable
from typing import Literal

RecordedStatus = Literal["running", "completed", "stopped", "crashed"]

DATABASE_NAME = "outputs.db"


class NewerDatabaseError(RuntimeError):
    """The file was written by a newer version, whose meaning is not known here."""


def _m001_mlx_node_store(db: sqlite3.Connection) -> None:
    """The reference's tables; on one of its older files only what that lacks is added."""
    for statement in _REFERENCE_TABLES:
        db.execute(statement)
    _add_missing(db, "training_runs", {"name": "TEXT"})
    _add_missing(db, "training_steps", {"std_advantage": "REAL NOT NULL DEFAULT 0"})
    for statement in _INDEXES:
        db.execute(statement)


def _m002_unknown_values_and_the_group(db: sqlite3.Connection) -> None:
    """Nullable losses and rewards, and the columns for what GRPO knows of each completion."""
    _rebuild(db, "training_steps", _STEPS_V2)
    _rebuild(db, "generations", _GENERATIONS_V2)
    for statement in _INDEXES:
        db.execute(statement)


def _m003_evaluations_and_settings(db: sqlite3.Connection) -> None:
    db.execute(
        """CREATE TABLE evaluations (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id TEXT NOT NULL REFERENCES training_runs(id),
            step INTEGER NOT NULL,
            name TEXT NOT NULL,
            num_prompts INTEGER NOT NULL,
            metrics TEXT NOT NULL,
            created_at INTEGER NOT NULL)"""
    )
    db.execute(
        """CREATE TABLE setting_changes (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id TEXT NOT NULL REFERENCES training_runs(id),
            step INTEGER NOT NULL,
            key TEXT NOT NULL,
            value TEXT NOT NULL,
            created_at INTEGER NOT NULL)"""
    )
    db.execute("CREATE INDEX idx_evaluations_run ON evaluations(run_id, step)")
    db.execute("CREATE INDEX idx_setting_changes_run ON setting_changes(run_id, step)")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    _m001_mlx_node_store,
    _m002_unknown_values_and_the_group,
    _m003_evaluations_and_settings,
)
SCHEMA_VERSION = len(MIGRATIONS)


def migrate(db: sqlite3.Connection) -> None:
    """Brings `db` to the current schema, each migration in a transaction of its own.

    For the writer only. Raises `NewerDatabaseError` when the file is from a newer version.
    """
    version = schema_version(db)
    if version > SCHEMA_VERSION:
        raise NewerDatabaseError(
            f"database schema {version} is newer than {SCHEMA_VERSION}; upgrade grpo-tui"
        )
    # A table is rebuilt under its old name, which rows of other tables point to.
    db.execute("PRAGMA foreign_keys = OFF")
    for number in range(version, SCHEMA_VERSION):
        db.execute("BEGIN IMMEDIATE")
        try:
            MIGRATIONS[number](db)
            db.execute(f"PRAGMA user_version = {number + 1}")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")


def schema_version(db: sqlite3.Connection) -> int:
    """Migrations applied to `db`; 0 for a new file and for one of the reference."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def _add_missing(db: sqlite3.Connection, table: str, wanted: dict[str, str]) -> None:
    present = _columns(db, table)
    for column, kind in wanted.items():
        if column not in present:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def _rebuild(db: sqlite3.Connection, table: str, definition: str) -> None:
    """SQLite cannot drop NOT NULL: copy the rows into a new table that takes the name."""
    db.execute(f"CREATE TABLE {table}_new ({definition})")
    shared = ", ".join(_columns(db, table))
    db.execute(f"INSERT INTO {table}_new ({shared}) SELECT {shared} FROM {table}")
    db.execute(f"DROP TABLE {table}")
    db.execute(f"ALTER TABLE {table}_new RENAME TO {table}")


_REFERENCE_TABLES = (
    """CREATE TABLE IF NOT EXISTS training_runs (
        id TEXT PRIMARY KEY,
        name TEXT,
        model_name TEXT NOT NULL,
        model_path TEXT,
        config TEXT NOT NULL,
        started_at INTEGER NOT NULL,
        ended_at INTEGER,
        total_steps INTEGER NOT NULL DEFAULT 0,
        status TEXT NOT NULL DEFAULT 'running')""",
    """CREATE TABLE IF NOT EXISTS training_steps (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT NOT NULL REFERENCES training_runs(id),
        step INTEGER NOT NULL,
        epoch INTEGER,
        loss REAL NOT NULL,
        mean_reward REAL NOT NULL,
        std_reward REAL NOT NULL,
        mean_advantage REAL,
        std_advantage REAL NOT NULL DEFAULT 0,
        total_tokens INTEGER,
        generation_time_ms REAL,
        training_time_ms REAL,
        gradients_applied INTEGER,
        created_at INTEGER NOT NULL,
        UNIQUE(run_id, step))""",
    """CREATE TABLE IF NOT EXISTS generations (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT NOT NULL REFERENCES training_runs(id),
        step_id INTEGER NOT NULL REFERENCES training_steps(id),
        batch_index INTEGER NOT NULL,
        group_index INTEGER NOT NULL,
        prompt TEXT NOT NULL,
        expected_answer TEXT,
        completion_text TEXT NOT NULL,
        completion_raw TEXT NOT NULL,
        thinking TEXT,
        num_tokens INTEGER NOT NULL,
        finish_reason TEXT NOT NULL,
        reward REAL NOT NULL,
        created_at INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS tool_calls (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        generation_id INTEGER NOT NULL REFERENCES generations(id),
        call_index INTEGER NOT NULL,
        status TEXT NOT NULL,
        tool_name TEXT,
        arguments TEXT,
        raw_content TEXT NOT NULL,
        error_message TEXT)""",
    """CREATE TABLE IF NOT EXISTS logs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT,
        level TEXT NOT NULL,
        target TEXT NOT NULL,
        message TEXT NOT NULL,
        file TEXT,
        line INTEGER,
        created_at INTEGER NOT NULL)""",
)

_STEPS_V2 = """
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES training_runs(id),
    step INTEGER NOT NULL,
    epoch INTEGER,
    loss REAL,
    mean_reward REAL,
    std_reward REAL,
    mean_advantage REAL,
    std_advantage REAL,
    total_tokens INTEGER,
    generation_time_ms REAL,
    reward_time_ms REAL,
    training_time_ms REAL,
    gradients_applied INTEGER,
    gradient_norm REAL,
    learning_rate REAL,
    peak_memory_mb REAL,
    active_memory_mb REAL,
    metrics TEXT,
    state TEXT NOT NULL DEFAULT 'done',
    created_at INTEGER NOT NULL,
    UNIQUE(run_id, step)"""

_GENERATIONS_V2 = """
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL REFERENCES training_runs(id),
    step_id INTEGER NOT NULL REFERENCES training_steps(id),
    batch_index INTEGER NOT NULL,
    group_index INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    expected_answer TEXT,
    completion_text TEXT NOT NULL,
    completion_raw TEXT NOT NULL,
    thinking TEXT,
    num_tokens INTEGER NOT NULL,
    finish_reason TEXT NOT NULL,
    reward REAL,
    reward_details TEXT,
    advantage REAL,
    token_ids TEXT,
    created_at INTEGER NOT NULL"""

_INDEXES = (
    "CREATE INDEX IF NOT EXISTS idx_runs_name ON training_runs(name)",
    "CREATE INDEX IF NOT EXISTS idx_steps_run_step ON training_steps(run_id, step)",
    "CREATE INDEX IF NOT EXISTS idx_generations_step ON generations(step_id)",
    "CREATE INDEX IF NOT EXISTS idx_generations_reward ON generations(run_id, reward)",
    "CREATE INDEX IF NOT EXISTS idx_generations_finish ON generations(run_id, finish_reason)",
    "CREATE INDEX IF NOT EXISTS idx_tool_calls_generation ON tool_calls(generation_id)",
    "CREATE INDEX IF NOT EXISTS idx_logs_run ON logs(run_id)",
    "CREATE INDEX IF NOT EXISTS idx_logs_level ON logs(level)",
)
