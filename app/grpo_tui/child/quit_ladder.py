"""How a trainer is brought to its end: ask, wait, insist, force.

STOP lets it save and close its files. Only when it does not end in time follow SIGTERM and, ten
seconds later, SIGKILL, both to its whole process group.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

from grpo_tui.child.child import Child
from grpo_tui.notices import STOP_PATIENCE, Item, QuitStage, Rung

TERMINATE_PATIENCE: Final = 10.0


class QuitLadder:
    """Climbs down from a polite STOP to SIGKILL until `child` is gone."""

    def __init__(
        self,
        child: Child,
        ask_to_stop: Callable[[], bool],
        emit: Callable[[Item], None],
        clock: Callable[[], float],
        terminate_patience: float = TERMINATE_PATIENCE,
    ) -> None:
        self._child = child
        self._ask_to_stop = ask_to_stop
        self._emit = emit
        self._clock = clock
        self._terminate_patience = terminate_patience
        self._hurry = asyncio.Event()
        self._kill = False

    async def run(self, patience: float = STOP_PATIENCE) -> None:
        """Returns when the process is gone."""
        if self._ask_to_stop() and await self._wait("stop", patience):
            return
        if not self._kill:
            self._child.signal_group(signal.SIGTERM)
            if await self._wait("terminate", self._terminate_patience):
                return
        self._emit(QuitStage("kill", None))
        self._child.signal_group(signal.SIGKILL)
        await self._child.exited()

    def hurry(self) -> None:
        """Do not wait longer on this rung."""
        self._hurry.set()

    def kill_now(self) -> None:
        """Go straight to SIGKILL."""
        self._kill = True
        self._child.signal_group(signal.SIGKILL)
        self._hurry.set()

    async def _wait(self, rung: Rung, patience: float) -> bool:
        self._emit(QuitStage(rung, self._clock() + patience))
        gone = asyncio.ensure_future(self._child.exited())
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait(
                {gone, hurried}, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            return gone.done()
        finally:
            self._hurry.clear()
            gone.cancel()
            hurried.cancel()
