"""Seconds between moments, on a clock that never goes back."""

import time
from collections.abc import Callable


class Stopwatch:
    """Measures laps and the time since its start."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = self._last = clock()

    def lap(self) -> float:
        """Seconds since the last lap, or since the start."""
        now = self._clock()
        elapsed, self._last = now - self._last, now
        return elapsed

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start
