"""Awaits async reward functions on one event loop that lives from step to step."""

import asyncio
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpo_trainer.rewards.calling import FunctionFailure, failure_of

_CANCEL_SECONDS = 1.0
"""How long a cancelled function may take to clean up."""


class LateFunctions(Exception):
    """Some functions were not done in time and have been cancelled."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


class AsyncRunner:
    """Keeps its loop: the HTTP clients that functions hold are bound to the loop they began in.

    It runs in the calling thread, or in one of its own where that has a running loop (a notebook).
    """

    def __init__(self) -> None:
        self._here = asyncio.Runner()
        self._there = asyncio.Runner()
        self._thread: ThreadPoolExecutor | None = None

    def gather(
        self, waiting: Mapping[str, Awaitable[Any]], timeout: float | None = None
    ) -> dict[str, Any]:
        """Results by name. Raises `FunctionFailure` for the first error, or `LateFunctions`."""
        try:
            if not _loop_is_running():
                return self._here.run(_gather(waiting, timeout))
            self._thread = self._thread or ThreadPoolExecutor(max_workers=1)
            return self._thread.submit(self._there.run, _gather(waiting, timeout)).result()
        except SystemExit as error:
            # asyncio lets it through and leaves no trace of the task that raised it.
            raise failure_of(", ".join(waiting), error) from error

    def close(self) -> None:
        """Cancels what is left and closes the loops."""
        if self._thread is not None:
            self._thread.submit(self._there.close).result()
            self._thread.shutdown()
            self._thread = None
        if not _loop_is_running():
            self._here.close()


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _gather(waiting: Mapping[str, Awaitable[Any]], timeout: float | None) -> dict[str, Any]:
    tasks = {name: asyncio.ensure_future(item) for name, item in waiting.items()}
    done, unfinished = await asyncio.wait(
        tasks.values(), timeout=timeout, return_when=asyncio.FIRST_EXCEPTION
    )
    for task in unfinished:
        task.cancel()
    if unfinished:
        await asyncio.wait(unfinished, timeout=_CANCEL_SECONDS)
    for name, task in tasks.items():
        if task not in done:
            continue
        if task.cancelled():
            raise FunctionFailure(name, "was cancelled by its own code")
        if error := task.exception():
            raise failure_of(name, error) from error
    if unfinished:
        raise LateFunctions([name for name, task in tasks.items() if task in unfinished])
    return {name: task.result() for name, task in tasks.items()}
