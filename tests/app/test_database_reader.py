"""Reading a record: rows as they were written, filters taken literally, honest run statuses."""

import os
import sqlite3
from pathlib import Path

import pytest

from grpo_tui.record.database import DatabaseReader
from grpo_tui.record.database_filter import narrowed
from grpo_tui.record.database_rows import GenerationQuery
from grpo_tui.sample_query import Bound, SampleQuery
from record_queries import NEWEST, places
from sample_database import (
    RecordWriter,
    Shape,
    build_run,
    dead_pid,
    lock_run,
)

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
        ("fin:LEN fin:stop", {0, 1, 2, 3}),
        ("fin:len fin:no", {0}),
        ("completion " * 12 + "tok>12", {3}),
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
        assert await places(reader, GenerationQuery(filter=SampleQuery(words=(wildcard,)))) == [
            (1, 0, 1)
        ]


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


def test_a_bound_that_no_row_can_meet_is_no_error() -> None:
    assert narrowed(NEWEST, "reward<-1e5 step:9..1").filter.bounds == (
        Bound("step", ">=", 9),
        Bound("step", "<=", 1),
    )
