"""Scores with functions of the running program, given through the Python API.

They run in the calling thread, because MLX arrays belong to the thread that made them and signals
to the main one. So an async function can be cancelled in time, but a plain one cannot: it is
reported while it overruns, and its late result is dropped.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from grpo_trainer.dataset import Example
from grpo_trainer.rewards.async_runner import AsyncRunner, LateFunctions
from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.calling import (
    FunctionFailure,
    call_functions,
    reward_function,
)
from grpo_trainer.rewards.types import OutputCallback, RewardError, RewardScores, combine
from grpo_trainer.rewards.validation import check_signatures, check_weights, expect_unique


class CallableScorer:
    """Calls functions in this process. `timeout` is in seconds for a whole step; 0 for no limit."""

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        weights: Sequence[float] | None,
        timeout: float,
        on_output: OutputCallback,
    ) -> None:
        self._functions = [reward_function(function) for function in functions]
        expect_unique(self.names)
        self.weights = check_weights(weights, self.names)
        """One for each function."""
        self._timeout = timeout
        self._on_output = on_output
        self._async = AsyncRunner()

    @property
    def names(self) -> list[str]:
        """Names of the functions in order."""
        return [function.name for function in self._functions]

    def check(self, examples: Sequence[Example]) -> None:
        """Raises `ConfigError` when a function needs a column that `examples` lack."""
        check_signatures([function.signature for function in self._functions], examples)

    def score(self, batch: RewardBatch) -> RewardScores:
        """Calls each function once with the whole batch. Raises `RewardError`."""
        watch = _Watch(self._timeout, self._on_output)

        def gather(waiting: Mapping[str, Awaitable[Any]]) -> Mapping[str, Any]:
            # From here on a late function is cancelled and not only reported.
            watch.stop()
            return self._async.gather(waiting, watch.remaining())

        try:
            scores = call_functions(
                self._functions,
                batch.keywords,
                batch.size,
                before=watch.start,
                after=watch.expect_in_time,
                gather=gather,
            )
        except FunctionFailure as failure:
            raise RewardError(
                failure.message,
                function=failure.function,
                step=batch.step,
                row=failure.row,
                detail=failure.detail,
            ) from failure
        except LateFunctions as late:
            raise RewardError(
                f"not done within reward_timeout={self._timeout:g} s; raise it, or make the "
                "function faster",
                function=", ".join(late.names),
                step=batch.step,
            ) from late
        finally:
            watch.stop()
        return combine(scores, self.weights)

    def close(self) -> None:
        """Closes the event loop of async functions."""
        self._async.close()


class _Watch:
    """Counts the time of one step, and says so while a function overruns."""

    def __init__(self, timeout: float, on_output: OutputCallback) -> None:
        self._timeout = timeout
        self._on_output = on_output
        self._deadline = time.monotonic() + timeout if timeout else None
        self._running: list[str] = []
        self._timer = threading.Timer(timeout, self._report)
        self._timer.daemon = True
        if timeout:
            self._timer.start()

    def start(self, names: list[str]) -> None:
        self._running = names

    def expect_in_time(self, name: str) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise LateFunctions([name])

    def remaining(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def stop(self) -> None:
        self._timer.cancel()

    def _report(self) -> None:
        names = ", ".join(f"`{name}`" for name in self._running)
        self._on_output(
            "notice",
            f"reward function {names} still runs after reward_timeout={self._timeout:g} s; "
            "its result will be dropped",
        )
