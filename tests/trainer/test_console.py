"""What people see without the dashboard."""

import io
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.config import GRPOConfig, config_values
from grpo_protocol.messages import (
    Checkpoint,
    Complete,
    Eval,
    Event,
    Failed,
    Init,
    Log,
    Status,
    Step,
)
from grpo_trainer.output.console import Console
from grpo_trainer.output.run_figures import RunFigures, duration, number


def step(number: int, **fields: Any) -> Step:
    values = {"loss": -0.0021, "total_tokens": 1840, "mean_reward": 0.534}
    return Step(step=number, **(values | fields))


def init(max_steps: int | None) -> Init:
    return Init("tiny", config_values(GRPOConfig()), max_steps)


class Screen:
    """A console whose two streams are kept as text."""

    def __init__(self, **options: Any) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.console = Console(out=self.out, err=self.err, **options)

    def show(self, *events: Event) -> list[str]:
        """New lines on stdout."""
        start = len(self.out.getvalue())
        for event in events:
            self.console.handle(event)
        return self.out.getvalue()[start:].splitlines()


@pytest.mark.parametrize("known", [{"total_tokens": 0}, {"generation_time_ms": 0.0}])
def test_a_step_that_trains_on_known_rollouts_has_no_rate(known: dict[str, Any]) -> None:
    times = {"generation_time_ms": 10.0, "reward_time_ms": 0.0, "training_time_ms": 300.0}
    screen = Screen()
    screen.show(init(150))
    (line,) = screen.show(step(12, **{**times, **known}))
    assert "tok/s" not in line
    assert "eta " in line


def test_a_step_is_one_line() -> None:
    screen = Screen()
    screen.show(init(150))
    (line,) = screen.show(
        step(
            12,
            generation_time_ms=600.0,
            reward_time_ms=100.0,
            training_time_ms=300.0,
            metrics={"completions/mean_length": 31.24},
        )
    )
    assert line.startswith("step 12/150  reward 0.534  loss -0.0021  len 31.2  1840 tok/s  eta ")


def test_unknown_values_are_said_to_be_unknown() -> None:
    (line,) = Screen().show(step(1, loss=None, mean_reward=None))
    assert line.startswith("step 1  reward n/a  loss n/a")


def test_the_time_left_comes_from_the_last_steps() -> None:
    now = [0.0]
    figures = RunFigures(clock=lambda: now[0])
    figures.start(13)
    for number_ in range(1, 4):
        now[0] += 20.0
        figures.add(step(number_))
    assert figures.line(step(3)).endswith("92 tok/s  eta 3:20")


def test_an_evaluation_does_not_count_as_time_of_a_step() -> None:
    now = [0.0]
    figures = RunFigures(clock=lambda: now[0])
    figures.start(11)
    now[0] += 600.0
    figures.skip_pause()
    now[0] += 2.0
    figures.add(step(1))
    assert figures.line(step(1)).endswith("eta 0:20")


def test_the_reward_beside_the_bar_is_smooth() -> None:
    figures = RunFigures()
    for reward in (0.0, 1.0):
        figures.add(step(1, mean_reward=reward))
    assert figures.reward_ema == pytest.approx(2 / 21)
    assert figures.beside_bar(step(2)).startswith("reward 0.095")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (83.4, "1:23"), (7283, "2:01:23"), (59.9, "1:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.0000"), (1e-6, "1.0e-06"), (-12.5, "-12.5000"), (None, "n/a")]
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value, 4) == text


def test_the_interval_holds_and_the_last_step_is_always_shown() -> None:
    screen = Screen(log_interval=4)
    lines = screen.show(init(None), *[step(i) for i in range(1, 7)], Complete(6, 83.0, "stopped"))
    assert [line.split()[1] for line in lines if line.startswith("step")] == ["4", "6"]
    assert "stopped: 6 steps in 1:23" in lines


def test_start_checkpoint_and_summary(tmp_path: Path) -> None:
    screen = Screen()
    screen.console.start(tmp_path)
    assert screen.out.getvalue() == ""
    screen.console.handle(Status("loading", "loading tiny"))
    assert screen.out.getvalue() == f"run folder: {tmp_path}\nloading tiny\n"
    assert screen.show(Status("loading", "loading tiny")) == ["loading tiny"]
    assert screen.show(Checkpoint("/x/checkpoint-2", 2)) == [
        "checkpoint after step 2: /x/checkpoint-2"
    ]
    screen.show(init(2), step(1, mean_reward=0.25), step(2, mean_reward=0.75))
    assert screen.show(Complete(2, 3.0, "completed")) == [
        "completed: 2 steps in 0:03",
        "reward (smoothed over 20 steps): 0.250 after step 1, 0.298 at the end",
        f"run folder: {tmp_path}",
    ]


def test_both_evaluations_are_printed() -> None:
    screen = Screen()
    assert screen.show(
        Eval(0, "greedy", 200, {"eval/accuracy": 0.365, "eval/completions/mean_length": 20.0})
    ) == ["evaluation greedy after step 0: accuracy 0.365 on 200 prompts"]
    assert screen.show(Eval(150, "greedy", 200, {"eval/accuracy": 0.785})) == [
        "evaluation greedy after step 150: accuracy 0.785 (at first 0.365) on 200 prompts"
    ]


def test_warnings_and_errors_go_to_stderr() -> None:
    screen = Screen()
    assert (
        screen.show(
            Log("warn", "slow BLAS"),
            Log("error", "no"),
            Log("debug", "detail"),
            Failed("out of memory", 1, hint="use a smaller batch_size"),
        )
        == []
    )
    assert screen.err.getvalue() == (
        "warning: slow BLAS\nerror: no\nerror: out of memory; use a smaller batch_size\n"
    )


def test_what_reward_functions_print_says_where_it_is_from() -> None:
    assert Screen().show(Log("info", "hi", "reward"), Log("info", "text")) == ["reward: hi", "text"]


def test_log_console_off_is_silent_except_for_errors(tmp_path: Path) -> None:
    screen = Screen(log_console=False)
    screen.console.start(tmp_path)
    screen.show(init(2), Log("info", "x"), step(1), Log("warn", "w"), Complete(2, 1.0))
    assert (screen.out.getvalue(), screen.err.getvalue()) == ("", "")
    screen.show(Failed("broken", 1))
    assert screen.err.getvalue() == "error: broken\n"


def test_S05_hostile_text_is_written_out() -> None:
    screen = Screen()
    hostile = "\x1b]52;c;x\x07\x1b[2J\x9b6n\u202eevil\ud83d\rover"
    lines = screen.show(Log("info", hostile), Checkpoint(f"/x/{hostile}", 1), Status("x", hostile))
    screen.show(Log("error", hostile), Failed(hostile, 1, hint=hostile))
    text = screen.out.getvalue() + screen.err.getvalue()
    assert not {c for c in text if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0)}
    assert "\u202e" not in text
    assert lines[0] == r"\x1b]52;c;x\x07\x1b[2J\x9b6n\u202eevil\ud83d"


def test_an_ascii_terminal_costs_no_line() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(out=out, err=out).handle(Log("info", "größe → 5"))
    assert out.buffer.getvalue() == b"gr\\xf6\\xdfe \\u2192 5\n"
