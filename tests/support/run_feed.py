"""Feeds a run state by hand: a clock that stands still until it is moved, and short ways to say
what a trainer tells."""

from pathlib import Path

from grpo_protocol.codec import decode_event
from grpo_protocol.config import ConfigValues
from grpo_protocol.messages import EpochStart, Generation, Init, Step
from grpo_tui.notices import ChildStarted, Item
from grpo_tui.state.run_state import RunState, apply

DATA = Path(__file__).parents[1] / "data"


class FakeClock:
    """A clock under the test's control."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


class Feed:
    """A run state with its clock; `feed(...)` applies events in order."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.state = RunState(clock=self.clock)

    def __call__(self, *items: Item) -> RunState:
        for item in items:
            apply(self.state, item)
        return self.state

    def lines(self, *lines: str) -> RunState:
        return self(*(decode_event(line.encode()) for line in lines))

    def recorded(self, name: str) -> RunState:
        return self.lines(*(DATA / name).read_text().splitlines())

    def running(self, *, steps: int = 100, group_size: int = 4) -> RunState:
        """A trainer that has begun its only epoch."""
        return self(
            ChildStarted(pid=4711),
            Init("tiny", ConfigValues(group_size=group_size), steps),
            EpochStart(1, 1, steps),
        )

    def steps(self, first: int, last: int, seconds: float = 2.0, reward: float = 0.5) -> RunState:
        for number in range(first, last + 1):
            self.clock.move(seconds)
            self(step(number, reward))
        return self.state

    def log_texts(self) -> list[str]:
        return [line.text for line in self.state.logs]


def step(number: int, reward: float | None = 0.5, tokens: int = 100) -> Step:
    return Step(number, 0.1, tokens, mean_reward=reward, generation_time_ms=500.0)


def generation(index: int, reward: float | None = 0.0, step: int | None = None) -> Generation:
    return Generation(index, f"prompt {index}", f"completion {index}", reward, 7, step=step)
