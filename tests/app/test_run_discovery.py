"""Finding recorded runs below a path, and reading again only what has changed."""

import os
from pathlib import Path

import pytest

from grpo_tui.record import run_catalog, run_discovery
from grpo_tui.record.run_catalog import RunCatalog
from grpo_tui.record.run_discovery import NoSuchPathError, find_databases
from sample_database import RecordWriter, Shape, build_run, dead_pid, lock_run

SMALL = Shape(1, 1, 1)


def touched(path: Path, seconds: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (seconds, seconds))
    return path


def found(path: Path) -> list[Path]:
    return [item.path for item in find_databases(path)]


def test_a_record_a_run_folder_and_a_parent_are_all_taken(tmp_path: Path) -> None:
    record = build_run(tmp_path / "project" / "outputs" / "demo-1", SMALL)
    assert found(record) == [record]
    assert found(record.parent) == [record]
    assert found(record.parent.parent) == [record]
    assert found(tmp_path / "project") == [record]


def test_a_record_of_another_name_is_taken_when_it_is_named(tmp_path: Path) -> None:
    record = touched(tmp_path / "old-run.db", 1)
    assert found(record) == [record]
    assert found(tmp_path) == []


def test_the_record_written_to_last_is_first(tmp_path: Path) -> None:
    records = {
        name: touched(tmp_path / name / "outputs.db", seconds)
        for name, seconds in {"a": 200, "b": 300, "c": 100}.items()
    }
    assert found(tmp_path) == [records["b"], records["a"], records["c"]]
    # A trainer that writes to its log has not touched the record itself yet.
    log = touched(tmp_path / "c" / "outputs.db-wal", 400)
    log.write_bytes(b"frame")
    assert found(tmp_path)[0] == records["c"]


def test_a_folder_with_a_record_may_hold_more(tmp_path: Path) -> None:
    outer, inner = touched(tmp_path / "outputs.db", 2), touched(tmp_path / "x" / "outputs.db", 1)
    assert found(tmp_path) == [outer, inner]


def test_hidden_and_foreign_folders_are_not_searched(tmp_path: Path) -> None:
    for name in (".git", "node_modules", "site-packages"):
        touched(tmp_path / name / "outputs.db", 1)
    touched(tmp_path / "1/2/3/4/outputs.db", 1)
    assert found(tmp_path) == []
    assert len(found(tmp_path / "1")) == 1


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    record = touched(tmp_path / "run" / "outputs.db", 1)
    (tmp_path / "run" / "again").symlink_to(tmp_path)
    assert found(tmp_path) == [record]


def test_the_search_ends_in_a_huge_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"{number:02d}").mkdir()
    near = touched(tmp_path / "00" / "outputs.db", 1)
    touched(tmp_path / "19" / "outputs.db", 1)
    monkeypatch.setattr(run_discovery, "MAX_FOLDERS", 5)
    assert found(tmp_path) == [near]


@pytest.mark.parametrize("name", ["missing", "a\0b", "x" * 5000])
def test_a_path_that_is_not_there_is_said_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchPathError) as caught:
        find_databases(tmp_path / name)
    assert "\n" not in str(caught.value)


async def test_the_runs_of_all_records_are_listed(tmp_path: Path) -> None:
    build_run(tmp_path / "a", SMALL, name="first")
    os.utime(tmp_path / "a" / "outputs.db", (1, 1))
    build_run(tmp_path / "b", SMALL, name="second")
    (tmp_path / "c").mkdir()
    touched(tmp_path / "c" / "outputs.db", 0).write_text("no database" * 1000)
    os.utime(tmp_path / "c" / "outputs.db", (0, 0))
    entries = await RunCatalog().read(tmp_path)
    assert [entry.run.name if entry.run else None for entry in entries] == ["second", "first", None]
    assert "is no SQLite database" in (entries[2].error or "")


async def test_only_what_has_changed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        build_run(tmp_path / name, SMALL, run_id=name)
    catalog = RunCatalog()
    await catalog.read(tmp_path)
    read: list[Path] = []
    original = run_catalog._read

    async def counted(database: Path, run_folder: Path | None) -> list[run_catalog.RunEntry]:
        read.append(database)
        return await original(database, run_folder)

    monkeypatch.setattr(run_catalog, "_read", counted)
    await catalog.read(tmp_path)
    assert read == []
    with RecordWriter(tmp_path / "a" / "outputs.db") as writer:
        writer.add_step("a", 2, SMALL)
    entries = await catalog.read(tmp_path)
    assert read == [tmp_path / "a" / "outputs.db"]
    assert {entry.run.steps for entry in entries if entry.run} == {1, 2}


async def test_a_trainer_that_was_killed_is_noticed_though_no_file_changes(tmp_path: Path) -> None:
    build_run(tmp_path, SMALL, status="running")
    lock = lock_run(tmp_path, os.getpid())
    stat = lock.stat()
    catalog = RunCatalog()
    (entry,) = await catalog.read(tmp_path)
    assert entry.run is not None
    assert entry.run.is_live
    lock_run(tmp_path, dead_pid())
    os.utime(lock, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (entry,) = await catalog.read(tmp_path)
    assert entry.run is not None
    assert entry.run.status == "crashed"
