"""What the state makes of a trainer's stream."""

import pytest

from grpo_protocol.codec import encode_event
from grpo_protocol.config import ConfigValues, OutputStoreConfig
from grpo_protocol.framing import Oversized
from grpo_protocol.messages import (
    Checkpoint,
    DatabasePath,
    Dropped,
    EpochEnd,
    EpochStart,
    Eval,
    Failed,
    Generation,
    Hello,
    Init,
    Log,
    Paused,
    PhaseChange,
    Resumed,
    Status,
    Step,
)
from grpo_tui.notices import ChildStarted
from grpo_tui.state.run_state import RunStatus
from run_feed import Feed, step


@pytest.fixture
def feed() -> Feed:
    return Feed()


def test_recorded_stream_of_the_reference_plays(feed: Feed) -> None:
    state = feed.recorded("mlx_node_resumed.jsonl")
    assert state.status is RunStatus.COMPLETE
    assert state.model == "tiny-qwen"
    assert state.run_name == "sums-a"
    assert state.progress.step == 6
    assert (state.progress.epoch, state.progress.total_steps) == (2, 10)
    assert state.series["reward"].values() == [0.2, 0.8, 0.3, 0.4, 0.5, 0.6]
    assert state.totals.tokens == 600 + 180 + 200 + 210
    assert (state.totals.best_reward, state.totals.best_reward_step) == (0.8, 2)
    assert state.last_checkpoint is not None
    assert state.last_checkpoint.path == "./outputs/checkpoint-6"
    assert (state.faults.malformed, state.faults.stray) == (0, 1)
    assert [sample.step for sample in state.samples] == [4, 4, 4, 4]
    assert [(s.prompt_index, s.group_index) for s in state.samples] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_w19_null_loss_epoch_end_and_resume_state_are_events_not_log_lines(feed: Feed) -> None:
    state = feed.recorded("mlx_node_resumed.jsonl")
    assert state.series["loss"].values() == [0.02, None, 0.01, None, 0.004, 0.003]
    assert state.faults.malformed == 0
    assert any("mean loss not finite" in text for text in feed.log_texts())


def test_r05_not_finite_values_show_as_gaps_and_bad_numbers_as_log_lines(feed: Feed) -> None:
    state = feed.running()
    feed.steps(1, 1)
    feed.lines(
        encode_event(Step(2, float("nan"), 10, mean_reward=float("inf"))).decode(),
        '{"type":"step","step":3,"loss":NaN,"totalTokens":1}',
        '{"type":"step","step":3,"loss":1e999,"totalTokens":1}',
        '{"type":"step","step":3,"loss":"nan","totalTokens":1}',
        '{"type":"step","step":3,"loss":0.1}',
        '{"type":"step","step":3,"loss":0.1,"totalTokens":1}{"type":"step"}',
        "[]",
    )
    assert state.series["loss"].values() == [0.1, None]
    assert state.series["reward"].values() == [0.5, None]
    assert (state.faults.malformed, state.faults.stray) == (5, 1)
    assert state.progress.step == 2
    feed.lines('{"type":"step","step":3,"loss":0.2,"totalTokens":1,"future":[1]}')
    assert state.progress.step == 3


def test_values_that_the_stream_lacks_are_absent_not_zero(feed: Feed) -> None:
    feed.running()
    feed.steps(1, 2)
    assert "kl" not in feed.state.series
    assert "adv_std" not in feed.state.series
    assert feed.state.latest("kl") is None
    assert feed.state.phase is None
    feed(Step(3, 0.1, 100))
    assert feed.state.series["reward"].values() == [0.5, 0.5, None]


def test_w34_speed_and_remaining_time_come_from_the_steps(feed: Feed) -> None:
    feed.running(steps=100)
    feed.steps(1, 4, seconds=2.0)
    feed.steps(5, 5, seconds=60.0)
    state = feed.state
    assert state.latest("tok_s") == 100 / 0.5
    assert state.eta_seconds == 95 * 2.0
    feed.clock.move(10.0)
    assert state.elapsed_seconds == 4 * 2.0 + 60.0 + 10.0


def test_remaining_time_is_unknown_without_steps_or_end(feed: Feed) -> None:
    assert feed.state.eta_seconds is None
    feed(Init("tiny", ConfigValues()))
    feed.steps(1, 3)
    assert feed.state.progress.total_steps is None
    assert feed.state.eta_seconds is None


def test_age_of_the_last_step_begins_again_after_a_pause(feed: Feed) -> None:
    feed.running()
    feed.steps(1, 2)
    feed(PhaseChange(3, "generating", 3, 8), Paused(2))
    feed.clock.move(17)
    state = feed(Resumed(2))
    assert state.times.last_step == feed.clock()
    assert state.phase is None
    feed.steps(3, 3, seconds=2.0)
    assert list(state.times.durations) == [2.0, 2.0, 2.0]


def test_loading_is_no_step_time(feed: Feed) -> None:
    feed(ChildStarted(1), Status("loading", "Loading…"))
    assert feed.state.status is RunStatus.LOADING
    feed.clock.move(300.0)
    feed(Init("tiny", ConfigValues(), 10), EpochStart(1, 1, 10))
    feed.steps(1, 1, seconds=3.0)
    assert feed.state.times.step_seconds == 3.0


def test_every_metric_of_a_step_is_charted_and_known_names_are_shared(feed: Feed) -> None:
    feed(
        Step(
            1,
            0.1,
            50,
            generation_time_ms=400.0,
            reward_time_ms=100.0,
            training_time_ms=500.0,
            gradient_norm=0.5,
            learning_rate=1e-5,
            peak_memory_mb=10.0,
            std_advantage=0.9,
            metrics={"rewards/len/mean": 0.5, "kl": None, "odd/new": 3.0, "learning_rate": 1e-5},
        )
    )
    series = feed.state.series
    assert {name: s.values() for name, s in series.items()} == {
        "loss": [0.1],
        "rewards/len/mean": [0.5],
        "kl": [None],
        "odd/new": [3.0],
        "lr": [1e-5],
        "adv_std": [0.9],
        "grad_norm": [0.5],
        "peak_memory_mb": [10.0],
        "gen_time": [0.4],
        "reward_time": [0.1],
        "train_time": [0.5],
        "step_time": [1.0],
        "tok_s": [125.0],
    }
    assert series["loss"].points()[0].tokens == 50


def test_config_shows_only_what_was_sent(feed: Feed) -> None:
    config = ConfigValues(
        group_size=8,
        temperature=0.8,
        reward=["a.py", "b.py:f"],
        output_store=OutputStoreConfig(enabled=False),
        shuffle=True,
    )
    feed(Init("tiny", config))
    told = {entry.key: (entry.value, entry.is_default, entry.live) for entry in feed.state.config}
    assert told == {
        "group_size": ("8", False, False),
        "temperature": ("0.8", True, True),
        "reward": ("a.py, b.py:f", False, False),
        "shuffle": ("true", True, False),
        "output_store.enabled": ("false", False, False),
        "output_store.local_path": ("none", True, False),
    }


def test_phase_of_the_running_step(feed: Feed) -> None:
    feed.running()
    feed(PhaseChange(1, "generating", 3, 8))
    phase = feed.state.phase
    assert phase is not None
    assert (phase.phase, phase.done, phase.total) == ("generating", 3, 8)
    assert feed(PhaseChange(1, "saving")).status is RunStatus.SAVING
    assert feed(Checkpoint("c/checkpoint-1", 1)).status is RunStatus.RUNNING


def test_evaluations_are_listed_and_charted(feed: Feed) -> None:
    feed(
        Eval(10, "held-out", 200, {"accuracy": 0.5}),
        Eval(20, "held-out", 200, {"eval/accuracy": None}),
    )
    assert [(e.step, e.metrics) for e in feed.state.evaluations] == [
        (10, {"accuracy": 0.5}),
        (20, {"accuracy": None}),
    ]
    assert feed.state.series["eval/held-out/accuracy"].values() == [0.5, None]


def test_epoch_position_without_its_field_counts_steps(feed: Feed) -> None:
    feed(EpochStart(1, 2, 3), step(1), step(2), step(3), EpochEnd(1, 0.1, 0.5, 3.0))
    assert feed.state.progress.step_in_epoch == 3
    feed(EpochStart(2, 2, 3))
    assert feed.state.progress.step_in_epoch == 0
    assert feed.state.progress.total_steps == 6


def test_stream_faults_are_counted_and_told(feed: Feed) -> None:
    feed(Oversized(9_000_000), Dropped(generations=4, logs=7))
    faults = feed.state.faults
    assert (faults.oversized, faults.dropped_generations, faults.dropped_logs) == (1, 4, 7)
    assert any("9,000,000 bytes" in text for text in feed.log_texts())
    assert any("4 completions" in text for text in feed.log_texts())


def test_absurd_numbers_do_not_reach_the_charts(feed: Feed) -> None:
    feed.running()
    feed.lines(f'{{"type":"step","step":{10**17},"loss":0.1,"totalTokens":1}}')
    feed(Step(-1, 0.1, 1), Step(1, 0.1, -5))
    assert feed.state.series == {}
    assert feed.state.faults.malformed == 3


def test_invented_metric_names_are_bounded(feed: Feed) -> None:
    for number in range(1, 30):
        feed(Step(number, 0.1, 1, metrics={f"m{number}/{n}": 1.0 for n in range(100)}))
    assert len(feed.state.series) == 500


def test_hostile_texts_are_harmless_in_the_state(feed: Feed) -> None:
    evil = "\x1b]0;owned\x07\u202e"
    feed(
        Init(evil, ConfigValues(data=evil)),
        Status(evil, evil),
        Log("info", evil, "stdout"),
        Log("error", evil, "stderr"),
        DatabasePath(evil, evil, evil),
        Checkpoint(evil, 1),
        Eval(1, evil, 1, {evil: 1.0}),
        Generation(
            0,
            evil,
            evil,
            1.0,
            1,
            {evil: 1.0},
            expected_answer=evil,
            finish_reason=evil,
            thinking=evil,
        ),
        Step(1, 0.1, 1, metrics={evil: 1}),
    )
    shown = repr(feed.state.config) + repr(list(feed.state.samples)) + repr(list(feed.state.logs))
    shown += repr(feed.state.marks) + repr(list(feed.state.series)) + repr(feed.state.evaluations)
    feed(Hello(1, evil, 1, [evil]), Failed(evil, 1, hint=evil))
    shown += repr(
        (
            feed.state.hello,
            feed.state.failure,
            feed.state.model,
            feed.state.loading_message,
            feed.state.database_path,
        )
    )
    assert "\\x1b" not in shown
    assert "\\x07" not in shown
    assert "\\u202e" not in shown


def test_each_change_grows_the_version(feed: Feed) -> None:
    versions = []
    for event in (Status("loading", "x"), step(1), Log("info", "y")):
        versions.append(feed(event).version)
    assert versions == [1, 2, 3]
