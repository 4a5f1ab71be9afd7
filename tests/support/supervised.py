"""A supervisor over the fake trainer, with its state, for tests that wait for conditions."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import fake_trainer
from grpo_tui.child.supervisor import Supervisor
from grpo_tui.launch import RestartRule
from grpo_tui.notices import Item
from grpo_tui.state.run_state import RunState, apply

FAKE = Path(fake_trainer.__file__)
PATIENCE = 30.0


def fake_argv(*words: str) -> list[str]:
    return [sys.executable, str(FAKE), *words]


class Supervised:
    """What a dashboard is without its screen."""

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        rule: RestartRule,
        back_off: Sequence[float],
        terminate_patience: float,
    ) -> None:
        self.state = RunState()
        self.items: list[Item] = []
        self.exits: list[int | None] = []
        self.supervisor = Supervisor(
            argv,
            cwd,
            None,
            self._take,
            self.exits.append,
            rule=rule,
            back_off=back_off,
            terminate_patience=terminate_patience,
        )
        self.task = asyncio.create_task(self.supervisor.run())

    def _take(self, item: Item) -> None:
        self.items.append(item)
        apply(self.state, item)

    async def until(self, condition: Callable[[RunState], object]) -> None:
        """Waits until `condition` holds; fails with the newest log lines when it never does."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition(self.state):
                    if self.task.done():
                        self.task.result()
                        assert condition(self.state), self._told()
                        return
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"never happened; {self._told()}") from None

    async def ended(self) -> RunState:
        """Waits until the supervisor is done."""
        async with asyncio.timeout(PATIENCE):
            await self.task
        return self.state

    def texts(self) -> list[str]:
        return [line.text for line in self.state.logs]

    def _told(self) -> str:
        return f"{self.state.status}, log: {self.texts()[-8:]}"


@asynccontextmanager
async def supervised(
    *words: str,
    cwd: Path,
    argv: Sequence[str] | None = None,
    rule: RestartRule | None = None,
    back_off: Sequence[float] = (0.01,),
    terminate_patience: float = 10.0,
) -> AsyncIterator[Supervised]:
    """Runs the fake trainer with `words` (or `argv`); kills what is left at the end."""
    run = Supervised(
        argv or fake_argv(*words), cwd, rule or RestartRule(), back_off, terminate_patience
    )
    try:
        yield run
    finally:
        run.supervisor.kill_now()
        await asyncio.wait({run.task}, timeout=PATIENCE)
        run.task.cancel()
