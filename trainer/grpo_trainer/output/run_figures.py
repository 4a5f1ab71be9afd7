"""The figures of a running training that people watch: reward, loss, length, speed, time left."""

import time
from collections import deque
from collections.abc import Callable

from grpo_protocol.messages import Step

EMA_STEPS = 20
_EMA_WEIGHT = 2 / (EMA_STEPS + 1)
_RATE_STEPS = 20


class RunFigures:
    """Follows the steps of a run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_steps: int | None = None
        self.first_reward: tuple[int, float] | None = None
        """First step with a reward, and the mean over its completions."""
        self.reward_ema: float | None = None
        self._clock = clock
        self._seconds: deque[float] = deque(maxlen=_RATE_STEPS)
        self._last_time = clock()

    def start(self, max_steps: int | None) -> None:
        """Training begins now."""
        self.max_steps = max_steps
        self._last_time = self._clock()

    def skip_pause(self) -> None:
        """What was done since the last step, such as an evaluation, is no part of the next."""
        self._last_time = self._clock()

    def add(self, event: Step) -> None:
        """Takes the next step into account."""
        now = self._clock()
        self._seconds.append(now - self._last_time)
        self._last_time = now
        if event.mean_reward is None:
            return
        if self.reward_ema is None:
            self.first_reward = (event.step, event.mean_reward)
            self.reward_ema = event.mean_reward
        else:
            self.reward_ema += _EMA_WEIGHT * (event.mean_reward - self.reward_ema)

    def line(self, event: Step) -> str:
        """`event` in one line, such as `step 12/150  reward 0.534  loss -0.0021  …  eta 1:23`."""
        length = event.metrics.get("completions/mean_length")
        parts = [
            f"step {self.count(event)}",
            f"reward {number(event.mean_reward, 3)}",
            f"loss {number(event.loss, 4)}",
            *([] if length is None else [f"len {length:.1f}"]),
            *self._speed(event),
        ]
        return "  ".join(parts)

    def beside_bar(self, event: Step) -> str:
        """The figures that fit beside a progress bar; here the reward is the smooth one."""
        reward, loss = number(self.reward_ema, 3), number(event.loss, 4)
        return "  ".join([f"reward {reward}", f"loss {loss}", *self._speed(event)])

    def count(self, event: Step) -> str:
        """`12/150`, or `12` when the end is not known."""
        return f"{event.step}/{self.max_steps}" if self.max_steps else str(event.step)

    def _speed(self, event: Step) -> list[str]:
        parts = []
        seconds = _step_seconds(event) or self._seconds[-1]
        # A step that trains on known rollouts has sampled nothing, and no rate.
        if seconds > 0 and event.total_tokens and event.generation_time_ms != 0:
            parts.append(f"{event.total_tokens / seconds:.0f} tok/s")
        if self.max_steps:
            left = max(self.max_steps - event.step, 0)
            parts.append(f"eta {duration(left * sum(self._seconds) / len(self._seconds))}")
        return parts


def number(value: float | None, digits: int = 3) -> str:
    """`value` for people; `n/a` when it is not known or not finite."""
    if value is None:
        return "n/a"
    if value and abs(value) < 10**-digits:
        return f"{value:.1e}"
    return f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """`1:23`, or `2:01:23` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _step_seconds(event: Step) -> float:
    parts = (event.generation_time_ms, event.reward_time_ms, event.training_time_ms)
    return sum(part or 0.0 for part in parts) / 1000
