"""Migrations: every older record becomes current without losing a row, or stays as it was."""

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_protocol import database
from grpo_protocol.database import (
    MIGRATIONS,
    SCHEMA_VERSION,
    NewerDatabaseError,
    migrate,
    schema_version,
)
from sample_database import Shape, reference_2025, reference_2026

SHAPE = Shape(steps=3, prompts=2, group_size=2)


def connect(path: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def columns(db: sqlite3.Connection, table: str) -> dict[str, bool]:
    """The columns of `table`, and whether each must have a value."""
    return {row[1]: bool(row[3]) for row in db.execute(f"PRAGMA table_info({table})")}


def layout(db: sqlite3.Connection) -> dict[str, dict[str, bool]]:
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: columns(db, table) for table in tables if not table.startswith("sqlite_")}


def indexes(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}


def fresh() -> sqlite3.Connection:
    db = connect(":memory:")
    migrate(db)
    return db


def test_a_fresh_file_gets_the_current_schema() -> None:
    db = fresh()
    assert schema_version(db) == SCHEMA_VERSION == 3
    assert {"training_runs", "training_steps", "generations", "tool_calls", "logs"} <= set(
        layout(db)
    )
    assert {"evaluations", "setting_changes"} <= set(layout(db))
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_migrating_twice_changes_nothing() -> None:
    db = fresh()
    before = list(db.iterdump())
    migrate(db)
    assert list(db.iterdump()) == before


@pytest.mark.parametrize("build", [reference_2025, reference_2026])
def test_a_record_of_the_reference_keeps_every_row(
    build: Callable[[Path, Shape], Path], tmp_path: Path
) -> None:
    db = connect(build(tmp_path / "old.db", SHAPE))
    tables = ("training_runs", "training_steps", "generations", "tool_calls")
    names = {table: list(columns(db, table)) for table in tables}
    before = {
        table: db.execute(f"SELECT {', '.join(names[table])} FROM {table} ORDER BY id").fetchall()
        for table in tables
    }
    migrate(db)
    for table in tables:
        kept = db.execute(f"SELECT {', '.join(names[table])} FROM {table} ORDER BY id").fetchall()
        assert kept == before[table]
    assert len(before["generations"]) == SHAPE.generations
    assert schema_version(db) == SCHEMA_VERSION
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("build", [reference_2025, reference_2026])
def test_a_migrated_record_is_like_a_fresh_one(
    build: Callable[[Path, Shape], Path], tmp_path: Path
) -> None:
    db = connect(build(tmp_path / "old.db", SHAPE))
    migrate(db)
    new = fresh()
    assert {name: set(table) for name, table in layout(db).items()} == {
        name: set(table) for name, table in layout(new).items()
    }
    assert indexes(db) == indexes(new)


@pytest.mark.parametrize("build", [reference_2025, reference_2026])
def test_an_unknown_loss_and_reward_can_be_stored(
    build: Callable[[Path, Shape], Path], tmp_path: Path
) -> None:
    """W40: a diverged step is recorded, not dropped."""
    db = connect(build(tmp_path / "old.db", SHAPE))
    migrate(db)
    db.execute("PRAGMA foreign_keys = ON")
    step = db.execute(
        "INSERT INTO training_steps (run_id, step, loss, mean_reward, std_reward, created_at) "
        "VALUES ('old-run', 99, NULL, NULL, NULL, 1)"
    )
    db.execute(
        "INSERT INTO generations (run_id, step_id, batch_index, group_index, prompt, "
        "completion_text, completion_raw, num_tokens, finish_reason, reward, created_at) "
        "VALUES ('old-run', ?, 0, 0, '', '', '', 0, 'stop', NULL, 1)",
        (step.lastrowid,),
    )
    assert db.execute("SELECT loss, state FROM training_steps WHERE step = 99").fetchone() == (
        None,
        "done",
    )


def test_new_rows_never_take_the_id_of_an_older_row(tmp_path: Path) -> None:
    db = connect(reference_2025(tmp_path / "old.db", SHAPE))
    last = db.execute("SELECT max(id) FROM training_steps").fetchone()[0]
    migrate(db)
    cursor = db.execute(
        "INSERT INTO training_steps (run_id, step, created_at) VALUES ('old-run', 50, 1)"
    )
    assert cursor.lastrowid == last + 1


def test_a_step_is_recorded_once_per_run() -> None:
    db = fresh()
    db.execute(
        "INSERT INTO training_runs (id, model_name, config, started_at) VALUES ('r', 'm', '{}', 1)"
    )
    insert = "INSERT INTO training_steps (run_id, step, created_at) VALUES ('r', 1, 1)"
    db.execute(insert)
    with pytest.raises(sqlite3.IntegrityError):
        db.execute(insert)


def test_a_migration_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = reference_2025(tmp_path / "old.db", SHAPE)

    def half_way(db: sqlite3.Connection) -> None:
        MIGRATIONS[1](db)
        raise sqlite3.OperationalError("disk is full")

    monkeypatch.setattr(database, "MIGRATIONS", (MIGRATIONS[0], half_way, MIGRATIONS[2]))
    db = connect(path)
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        migrate(db)
    assert not db.in_transaction
    assert schema_version(db) == 1
    assert columns(db, "training_steps")["loss"]
    assert "state" not in columns(db, "training_steps")
    assert not any(name.endswith("_new") for name in layout(db))

    monkeypatch.undo()
    migrate(db)
    assert schema_version(db) == SCHEMA_VERSION
    assert db.execute("SELECT count(*) FROM generations").fetchone() == (SHAPE.generations,)


def test_a_newer_record_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    db = connect(path)
    migrate(db)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    db = connect(path)
    with pytest.raises(NewerDatabaseError, match="upgrade"):
        migrate(db)
    db.close()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
