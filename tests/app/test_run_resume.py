"""A resumed run shows its whole history, each step once."""

import pytest

from grpo_protocol.config import ConfigValues
from grpo_protocol.messages import (
    Aggregates,
    Checkpoint,
    DatabasePath,
    EpochStart,
    Eval,
    Event,
    Generation,
    Init,
    MetricsHistoryItem,
    ResumeState,
    Step,
)
from grpo_tui.notices import ChildStarted
from grpo_tui.state.run_state import restore_steps
from run_feed import Feed, step


@pytest.fixture
def feed() -> Feed:
    return Feed()


RESUME = ResumeState(
    step=3,
    epoch=1,
    total_epochs=2,
    step_in_epoch=3,
    total_steps_in_epoch=5,
    metrics_history=[
        MetricsHistoryItem(1, loss=0.02, mean_reward=0.2),
        MetricsHistoryItem(2, loss=None, mean_reward=0.8),
        MetricsHistoryItem(3, loss=0.01, mean_reward=0.3),
    ],
    aggregates=Aggregates(best_reward=0.8, reward_count=3, best_loss=None, total_tokens=600),
)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_w24_resume_database_and_init_in_any_order(feed: Feed, order: tuple[int, ...]) -> None:
    told: list[Event] = [
        RESUME,
        DatabasePath("runs/a/outputs.db", "id-1", "a"),
        Init("tiny", ConfigValues(group_size=2)),
    ]
    feed(ChildStarted(1), *(told[place] for place in order), EpochStart(1, 2, 5))
    state = feed.state
    assert state.series["reward"].values() == [0.2, 0.8, 0.3]
    assert (state.progress.step, state.progress.step_in_epoch) == (3, 3)
    assert state.totals.tokens == 600
    assert state.totals.best_reward == 0.8
    assert state.model == "tiny"
    assert state.database_path == "runs/a/outputs.db"
    feed(step(4))
    assert (state.progress.step, state.progress.step_in_epoch) == (4, 4)


def test_resume_keeps_what_is_known_and_forgets_what_will_be_done_again(feed: Feed) -> None:
    feed.running()
    feed.steps(1, 5, reward=0.4)
    feed(Step(6, 0.1, 100, mean_reward=0.99), Generation(0, "p", "c", 1.0, 3, step=6))
    feed(Checkpoint("x/checkpoint-6", 6))
    feed(ChildStarted(2, restart=1), RESUME)
    state = feed.state
    assert state.series["reward"].values() == [0.4, 0.4, 0.4]
    assert state.series["gen_time"].values() == [0.5, 0.5, 0.5]
    assert len(state.samples) == 0
    assert [mark.kind for mark in state.marks if mark.step > 3] == ["restart"]
    feed(step(4, 0.6))
    assert state.series["reward"].points()[-1].step == 4


def test_charts_are_filled_from_the_database_where_the_stream_told_nothing(feed: Feed) -> None:
    feed(step(3, reward=0.9))
    restore_steps(
        feed.state,
        [
            (1, 1_000_000, 100, {"loss": None, "mean_reward": 0.1, "training_time_ms": 500.0}),
            (2, 2_000_000, 100, {"loss": 0.2, "mean_reward": 0.2, "kl": 0.01}),
            (3, 3_000_000, 100, {"loss": 0.3, "mean_reward": 0.3}),
        ],
    )
    series = feed.state.series
    assert series["reward"].values() == [0.1, 0.2, 0.9]
    assert series["loss"].values() == [None, 0.2, 0.1]
    assert series["train_time"].points() == [(1, 0.5, 1000.0, 100)]
    assert series["kl"].points()[0].tokens == 200
    assert feed.state.totals.tokens == 300


def test_recorded_steps_take_the_place_of_the_summary_that_a_resume_tells(feed: Feed) -> None:
    feed(RESUME, step(4))
    rows = [(n, n * 1000, 200, {"loss": 0.5, "mean_reward": 0.1 * n}) for n in (1, 2, 3)]
    restore_steps(feed.state, rows)
    points = feed.state.series["reward"].points()
    assert [(point.step, point.time, point.tokens) for point in points[:3]] == [
        (1, 1.0, 200),
        (2, 2.0, 400),
        (3, 3.0, 600),
    ]
    assert points[3].tokens == 700


def test_trainer_that_begins_again_without_a_checkpoint_begins_at_nothing(feed: Feed) -> None:
    feed.running()
    feed.steps(1, 5, reward=0.9)
    feed(Eval(4, "greedy", 10, {"accuracy": 0.5}))
    feed(ChildStarted(2, restart=1), Init("tiny", ConfigValues(group_size=2), 100))
    state = feed.state
    assert (state.progress.step, state.progress.epoch, state.progress.max_steps) == (0, None, 100)
    assert state.totals.tokens == 0
    assert state.totals.best_reward is None
    assert state.evaluations == []
    assert not any(state.series.values())
    assert not len(state.samples)


def test_evaluation_told_again_takes_the_place_of_the_first(feed: Feed) -> None:
    feed.running()
    for accuracy in (0.25, 0.5):
        feed(Eval(0, "greedy", 10, {"accuracy": accuracy}))
    feed(Eval(0, "sampled", 10, {"accuracy": 0.1}))
    told = [(e.name, e.metrics["accuracy"]) for e in feed.state.evaluations]
    assert told == [("greedy", 0.5), ("sampled", 0.1)]
    assert feed.state.series["eval/greedy/accuracy"].values() == [0.5]
