"""What is kept for a restart: the run's folder, and the settings that were accepted."""

from pathlib import Path

import pytest

from grpo_protocol.commands import Set
from grpo_protocol.config import ConfigValues
from grpo_protocol.messages import Ack, Applied, Checkpoint, DatabasePath, Failed, Init
from grpo_tui.child.restart_memory import RestartMemory
from grpo_tui.notices import ChildExited, ChildStarted, CommandSent, Item
from run_feed import step


def memory_of(cwd: Path, *items: Item) -> RestartMemory:
    memory = RestartMemory(cwd)
    for item in (ChildStarted(1), *items):
        memory.learn(item)
    return memory


def test_refused_setting_leaves_the_accepted_one(tmp_path: Path) -> None:
    good, bad = Set("temperature", "0.5"), Set("temperature", "-1")
    memory = memory_of(
        tmp_path,
        CommandSent(1, good),
        Ack(1, "SET temperature", True),
        Applied(1, "SET temperature", True),
        CommandSent(2, bad),
        Ack(2, "SET temperature", False, "must be positive"),
        ChildExited(-9, asked=False),
    )
    assert memory.settings == [good]


def test_setting_that_an_answering_trainer_never_answered_is_not_repeated(tmp_path: Path) -> None:
    first, lost = Set("temperature", "0.5"), Set("temperature", "0.7")
    sent = (CommandSent(1, first), Ack(1, "SET temperature", True), CommandSent(2, lost))
    memory = memory_of(tmp_path, *sent, ChildExited(-9, asked=False))
    assert memory.settings == [first]


def test_trainer_without_answers_has_taken_every_setting(tmp_path: Path) -> None:
    sent = [CommandSent(1, Set("sample_display", "all")), CommandSent(2, Set("lr", "1"))]
    memory = memory_of(tmp_path, *sent, ChildExited(-9, asked=False))
    assert memory.settings == [Set("sample_display", "all"), Set("lr", "1")]


def test_folder_that_the_trainer_names_counts_most(tmp_path: Path) -> None:
    told = Init("tiny", ConfigValues(output_dir="runs/a"))
    record, saved = DatabasePath("db/outputs.db", "id"), Checkpoint("runs/b/checkpoint-4", 4)
    assert memory_of(tmp_path, record, told, saved).run_folder == "runs/a"
    silent = Init("tiny", ConfigValues(output_dir=None))
    assert memory_of(tmp_path, record, silent, saved).run_folder == "runs/b"


@pytest.mark.parametrize(
    ("content", "known"), [("run.lock", True), ("checkpoint-8", True), ("x", False)]
)
def test_folder_of_the_record_counts_where_a_run_lies(
    content: str, known: bool, tmp_path: Path
) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / content).touch()
    memory = memory_of(tmp_path, DatabasePath("db/outputs.db", "id"))
    assert memory.run_folder == ("db" if known else None)


FAILED = Failed("out of memory", 1)


def test_failure_without_a_finished_step_is_sure_to_come_again(tmp_path: Path) -> None:
    told = "it failed before it had finished a step"
    assert memory_of(tmp_path, FAILED).sure_failure == told
    memory = memory_of(tmp_path, step(1), ChildExited(-9, asked=False), ChildStarted(2, 1), FAILED)
    assert memory.sure_failure == told


def test_failure_at_the_step_of_the_life_before_is_sure_to_come_again(tmp_path: Path) -> None:
    memory = memory_of(tmp_path, step(5), step(6), FAILED)
    assert memory.sure_failure is None
    for item in (ChildStarted(2, 1), step(5), step(6), FAILED):
        memory.learn(item)
    assert memory.sure_failure == "it failed again after step 6"


def test_failure_that_comes_later_or_after_a_crash_is_not_sure(tmp_path: Path) -> None:
    memory = memory_of(tmp_path, step(6), FAILED, ChildStarted(2, 1), step(6), step(7), FAILED)
    assert memory.sure_failure is None
    crash = (step(6), ChildExited(-9, asked=False))
    memory = memory_of(tmp_path, step(6), FAILED, ChildStarted(2, 1), *crash)
    assert memory.sure_failure is None
    for item in (ChildStarted(3, 2), step(6), FAILED):
        memory.learn(item)
    assert memory.sure_failure is None
