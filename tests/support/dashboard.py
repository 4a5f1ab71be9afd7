"""The whole dashboard under a pilot, over a run that the test tells event by event.

No process runs: what the dashboard would tell a trainer is kept in `sent`.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from textual.pilot import Pilot

import fake_trainer
from fake_events import step_events
from grpo_protocol.commands import Command
from grpo_protocol.config import GRPOConfig, config_values
from grpo_protocol.messages import EpochStart, Hello, Init, PhaseChange
from grpo_tui.app import GrpoApp
from grpo_tui.child.supervisor import Supervisor
from grpo_tui.launch import LaunchPlan
from grpo_tui.notices import ChildStarted, CommandSent, Item
from grpo_tui.screens.live import LiveScreen
from run_feed import FakeClock

Size = tuple[int, int]
_PATIENCE = 10.0
_ARGS = fake_trainer.parse_args(["--interval", "1", "--prompts", "2", "--group-size", "4"])


class SpySupervisor:
    """Stands where the supervisor stands; keeps what it is asked."""

    def __init__(self, receive: Callable[[Item], None]) -> None:
        self._receive = receive
        self.alive = True
        self.sent: list[Command] = []
        self.calls: list[str] = []

    def send(self, command: Command) -> int:
        self.sent.append(command)
        self._receive(CommandSent(len(self.sent), command))
        return len(self.sent)

    async def quit(self, patience: float) -> None:
        self.calls.append(f"quit {patience:.0f}")

    def hurry(self) -> None:
        self.calls.append("hurry")

    def kill_now(self) -> None:
        self.calls.append("kill")

    def detach(self) -> None:
        self.calls.append("detach")

    def cancel_restart(self) -> None:
        self.calls.append("cancel restart")

    def restart_now(self) -> None:
        self.calls.append("restart now")


class Dashboard:
    """One app under test."""

    def __init__(self, app: GrpoApp, pilot: Pilot[None], clock: FakeClock) -> None:
        self.app, self.pilot, self.clock = app, pilot, clock
        self.supervisor = SpySupervisor(app.receive)
        app.supervisor = cast(Supervisor, self.supervisor)

    @property
    def sent(self) -> list[Command]:
        """Commands for the trainer, oldest first."""
        return self.supervisor.sent

    async def feed(self, *items: Item) -> None:
        """Tells events and shows their effect."""
        for item in items:
            self.app.receive(item)
        await self.settle()

    async def begin(self, *, steps: int = 100, epochs: int = 1) -> None:
        """A trainer has started its first epoch."""
        config = GRPOConfig(
            model="tiny", group_size=4, batch_size=2, max_steps=steps, reward=["correct", "format"]
        )
        await self.feed(
            ChildStarted(4711),
            Hello(1, "0.1", 4711),
            Init("tiny-model", config_values(config), steps),
            EpochStart(1, epochs, steps // epochs),
        )

    async def steps(self, first: int, last: int) -> None:
        """Steps with their completions, one a second."""
        for number in range(first, last + 1):
            self.clock.move(1.0)
            for event in step_events(_ARGS, number, 1, number):
                self.app.receive(event)
        await self.feed(PhaseChange(last + 1, "generating", 3, 8))

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def settle(self) -> None:
        """Until what has been told is on the screen."""
        self.app.tick()
        await self.pilot.pause()
        await self.pilot.pause()

    async def resize(self, width: int, height: int) -> None:
        await self.pilot.resize_terminal(width, height)
        await self.until(lambda: self.app.screen.size == (width, height))
        await self.settle()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for `condition`, and fails when it does not come."""
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"did not happen\n{self.text}"
            await self.pilot.pause(0.01)

    @property
    def lines(self) -> list[str]:
        """The screen as it is drawn, row by row."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def find(self, words: str) -> str:
        """The first row that holds `words`."""
        found = next((line for line in self.lines if words in line), None)
        assert found is not None, f"{words!r} is not on the screen\n{self.text}"
        return found

    @property
    def live(self) -> LiveScreen:
        """The screen of the run, which must be the one in front."""
        assert isinstance(self.app.screen, LiveScreen)
        return self.app.screen


@asynccontextmanager
async def dashboard(
    size: Size = (120, 40), *, ascii_only: bool = False, folder: Path | None = None
) -> AsyncIterator[Dashboard]:
    """A dashboard of which no trainer has told anything yet."""
    clock = FakeClock(1_764_579_600.0)
    plan = LaunchPlan("live", name="demo", ascii=ascii_only, cwd=folder or Path("/nowhere"))
    app = GrpoApp(plan, clock)
    async with app.run_test(size=size, notifications=True) as pilot:
        board = Dashboard(app, pilot, clock)
        await board.settle()
        yield board
