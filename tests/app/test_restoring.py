"""The charts hold the whole run: what the stream left out is read from the record."""

from pathlib import Path

import pytest

from dashboard import dashboard
from grpo_protocol.config import ConfigValues
from grpo_protocol.messages import (
    Aggregates,
    DatabasePath,
    Dropped,
    EpochStart,
    Eval,
    Event,
    Init,
    MetricsHistoryItem,
    ResumeState,
)
from grpo_tui.notices import ChildStarted
from grpo_tui.record.database import DatabaseReader
from grpo_tui.restoring import PastReader
from run_feed import Feed, step
from sample_database import RecordWriter, Shape, build_run

RUN = (ChildStarted(1), DatabasePath("outputs.db", "run-1"), Init("tiny", ConfigValues()))
SMALL = Shape(steps=1, prompts=1, group_size=2)


def resumed(at: int, **totals: int) -> ResumeState:
    history = [MetricsHistoryItem(at, loss=0.5, mean_reward=0.25)]
    return ResumeState(at, 1, 1, at, 100, history, Aggregates(**totals))


async def restored(feed: Feed, folder: Path) -> None:
    reader = PastReader(feed.state, folder, feed, pause=0.001)
    assert reader.is_due
    await reader.read()
    assert not reader.is_due


def steps_of(feed: Feed, name: str = "reward") -> list[int]:
    return [point.step for point in feed.state.series[name].points()]


async def test_w24_resumed_run_shows_its_whole_past(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(steps=80, prompts=1, group_size=2))
    with RecordWriter(tmp_path / "outputs.db") as writer:
        writer.add_evaluation("run-1", 40, {"eval/accuracy": 0.5})
    feed = Feed()
    # The record holds steps up to 80; this trainer does those after 70 again.
    feed(*RUN, resumed(70, total_tokens=7000), EpochStart(1, 1, 100), step(71))
    await restored(feed, tmp_path)
    assert steps_of(feed) == list(range(1, 72))
    assert feed.state.series["reward"].values(2) == [0.07, 0.5]
    assert feed.state.totals.tokens == 7100
    assert [(e.step, e.metrics) for e in feed.state.evaluations] == [(40, {"accuracy": 0.5})]
    assert steps_of(feed, "eval/greedy/accuracy") == [40]
    assert feed.state.totals.best_reward_step == 71


async def test_dropped_steps_come_back_between_those_that_were_told(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(steps=9, prompts=1, group_size=2))
    feed = Feed()
    feed(*RUN, EpochStart(1, 1, 100))
    feed.steps(1, 3)
    feed(Dropped(steps=4))
    feed.steps(8, 9)
    await restored(feed, tmp_path)
    points = feed.state.series["reward"].points()
    assert [point.step for point in points] == list(range(1, 10))
    assert [point.tokens for point in points] == list(range(100, 1000, 100))
    assert [point.value for point in points[2:5]] == [0.5, 0.004, 0.005]
    assert feed.state.totals.tokens == 900
    feed(step(10))
    assert feed.state.totals.tokens == 1000


async def test_record_that_is_behind_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_run(tmp_path, Shape(steps=3, prompts=1, group_size=2))
    feed = Feed()
    feed(*RUN, EpochStart(1, 1, 100), step(1), Dropped(steps=4), step(6))
    counts = DatabaseReader.counts
    looks = []

    async def count_and_write(reader: DatabaseReader, run_id: str) -> tuple[int, int]:
        looks.append(await counts(reader, run_id))
        with RecordWriter(tmp_path / "outputs.db") as writer:
            for number in (4, 5, 6)[: 6 - looks[-1][0]]:
                writer.add_step("run-1", number, SMALL)
        return looks[-1]

    monkeypatch.setattr(DatabaseReader, "counts", count_and_write)
    await restored(feed, tmp_path)
    assert [steps for steps, _ in looks] == [3, 6]
    assert steps_of(feed) == [1, 2, 3, 4, 5, 6]


async def test_unreadable_record_is_one_line_and_asked_for_once(tmp_path: Path) -> None:
    feed = Feed()
    feed(*RUN, resumed(5), EpochStart(1, 1, 100))
    await restored(feed, tmp_path)
    told = [text for text in feed.log_texts() if "cannot be charted" in text]
    assert len(told) == 1
    assert "there is no such file" in told[0]


@pytest.mark.parametrize("extra", [[], [step(6)]])
async def test_what_the_stream_has_told_is_not_doubled(extra: list[Event], tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "outputs.db") as writer:
        writer.add_run()
        for number in range(1, 7):
            writer.add_step("run-1", number, SMALL)
        writer.add_evaluation("run-1", 4, {"accuracy": 0.5})
    feed = Feed()
    feed(*RUN, resumed(3), EpochStart(1, 1, 100), step(4))
    feed(Eval(4, "greedy", 200, {"accuracy": 0.75}), step(5), *extra)
    await restored(feed, tmp_path)
    assert steps_of(feed) == list(range(1, 6 + len(extra)))
    assert [(e.step, e.metrics) for e in feed.state.evaluations] == [(4, {"accuracy": 0.75})]


async def test_dashboard_restores_by_itself(tmp_path: Path) -> None:
    build_run(tmp_path, Shape(steps=20, prompts=1, group_size=2))
    async with dashboard(folder=tmp_path) as board:
        await board.feed(*RUN, resumed(20), EpochStart(1, 1, 100))
        await board.until(lambda: len(board.app.state.series["reward"]) == 20)
