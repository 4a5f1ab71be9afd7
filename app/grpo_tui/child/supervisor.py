"""Keeps one trainer running: starts it, feeds its events to the state, sends it commands, restarts
it after a crash, and ends it when asked. Knows nothing of the screen."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpo_protocol.commands import Command, Stop, format_command
from grpo_protocol.messages import Step
from grpo_tui.child.child import Child
from grpo_tui.child.quit_ladder import TERMINATE_PATIENCE, QuitLadder
from grpo_tui.child.restart_memory import RestartMemory
from grpo_tui.child.restart_policy import BACK_OFF, Restart, RestartPolicy, resume_argv
from grpo_tui.launch import NO_RESTART, RestartRule
from grpo_tui.notices import (
    STOP_PATIENCE,
    ChildExited,
    ChildStarted,
    CommandSent,
    CommandUnsent,
    Detached,
    Item,
    QuitStage,
    RestartGivenUp,
    RestartScheduled,
    SpawnFailed,
)


class Supervisor:
    """Owner of the trainer process. All methods are for the event loop's thread.

    `on_event` gets every event and notice in order; `on_exit` is called once, when no trainer runs
    and none will be started, with the last exit status (None: none ran, or we let go of it).
    Ending `run` by cancelling it leaves a living trainer alone, which then goes on headless.
    """

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None,
        on_event: Callable[[Item], None],
        on_exit: Callable[[int | None], None],
        *,
        rule: RestartRule = NO_RESTART,
        clock: Callable[[], float] = time.time,
        back_off: Sequence[float] = BACK_OFF,
        terminate_patience: float = TERMINATE_PATIENCE,
    ) -> None:
        self._argv = list(argv)
        self._cwd = cwd
        self._env = dict(os.environ if env is None else env)
        self._on_event = on_event
        self._on_exit = on_exit
        self._rule = rule
        self._clock = clock
        self._terminate_patience = terminate_patience
        self._policy = RestartPolicy(rule.enabled, back_off)
        self._child: Child | None = None
        self._ladder: QuitLadder | None = None
        self._sent: dict[int, Command] = {}
        self._memory = RestartMemory(cwd)
        self._restarts = 0
        self._attempts = 0
        self._restart_choice: asyncio.Future[bool] | None = None
        self._stop_asked = False
        self._leaving = False
        self._detached = asyncio.Event()

    @property
    def alive(self) -> bool:
        """A trainer process runs and is ours."""
        return self._child is not None and self._child.alive and not self._detached.is_set()

    @property
    def pid(self) -> int | None:
        """Of the trainer that runs now."""
        return self._child.pid if self._child is not None and self.alive else None

    async def run(self) -> None:
        """Runs the trainer, and again after a crash, until it has ended for good."""
        argv, code = self._argv, None
        try:
            while True:
                code = await self._run_once(argv)
                if code is None or not await self._restart_follows(code):
                    break
                argv = self._restart_argv()
        finally:
            if self._child is not None:
                self._child.release()
        self._on_exit(code)

    def send(self, command: Command) -> int | None:
        """Writes `command`; returns its line number, or None when that is not possible.

        Never waits. Success and failure are both told as notices.
        """
        try:
            text = format_command(command)
        except ValueError as error:
            self._unsent(None, command, str(error))
            return None
        if self._child is None or not self.alive:
            self._unsent(None, command, "no trainer is running")
            return None
        if isinstance(command, Stop):
            self._stop_asked = True
        number = self._child.commands.write(text)
        if isinstance(number, str):
            self._unsent(None, command, number)
            return None
        self._sent[number] = command
        self._emit(CommandSent(number, command))
        return number

    async def quit(self, patience: float = STOP_PATIENCE) -> None:
        """Ends the trainer by the ladder and returns when it is gone; cancels a restart to come."""
        self._leaving = True
        self.cancel_restart()
        if self._child is None or not self.alive:
            return
        if self._ladder is not None:
            await self._child.exited()
            return
        self._ladder = QuitLadder(
            self._child, self._ask_to_stop, self._emit, self._clock, self._terminate_patience
        )
        await self._ladder.run(patience)

    def hurry(self) -> None:
        """Goes to the next rung of the quit ladder at once."""
        if self._ladder is not None:
            self._ladder.hurry()

    def kill_now(self) -> None:
        """SIGKILL to the trainer's process group, from any rung or from none."""
        self._leaving = True
        self.cancel_restart()
        if self._child is None or not self.alive:
            return
        self._ladder = self._ladder or QuitLadder(
            self._child, self._ask_to_stop, self._emit, self._clock
        )
        self._emit(QuitStage("kill", None))
        self._ladder.kill_now()

    def detach(self) -> None:
        """Lets go of the trainer, which finishes its run headless; `run` then returns."""
        self._leaving = True
        self.cancel_restart()
        if self.alive:
            self._emit(Detached())
            self._detached.set()

    def cancel_restart(self) -> None:
        """No restart comes, if one was waiting."""
        self._choose_restart(False)

    def restart_now(self) -> None:
        """The waiting restart comes at once."""
        self._choose_restart(True)

    def _choose_restart(self, wanted: bool) -> None:
        if self._restart_choice is not None and not self._restart_choice.done():
            self._restart_choice.set_result(wanted)

    async def _run_once(self, argv: Sequence[str]) -> int | None:
        """One process from start to end; None when it did not start, or was let go."""
        self._stop_asked = False
        self._ladder = None
        self._sent.clear()
        try:
            self._child = Child.spawn(argv, self._cwd, self._env, self._emit, self._lost)
        except (OSError, ValueError) as error:
            self._emit(SpawnFailed(f"cannot start {argv[0]}: {error}"))
            return None
        self._emit(ChildStarted(self._child.pid, self._restarts))
        for setting in self._memory.settings:
            self.send(setting)
        await self._child.attach()
        finished = asyncio.ensure_future(self._child.finished())
        detached = asyncio.ensure_future(self._detached.wait())
        try:
            await asyncio.wait({finished, detached}, return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():
                return None
            code = finished.result()
        finally:
            finished.cancel()
            detached.cancel()
        self._emit(ChildExited(code, asked=self._ladder is not None))
        return code

    async def _restart_follows(self, code: int) -> bool:
        memory = self._memory
        # A trainer that has closed its run may still end by the signal that made it do so.
        asked = self._leaving or self._stop_asked or memory.completed
        decision = self._policy.decide(
            code,
            asked=asked,
            trained=memory.trained,
            now=self._clock(),
            sure_failure=memory.sure_failure,
        )
        if not isinstance(decision, Restart):
            if decision.reason is not None:
                self._emit(RestartGivenUp(decision.reason))
            return False
        self._restart_choice = asyncio.get_running_loop().create_future()
        self._attempts += 1
        self._emit(RestartScheduled(self._attempts, self._clock() + decision.delay))
        await asyncio.wait({self._restart_choice}, timeout=decision.delay)
        wanted = self._restart_choice.result() if self._restart_choice.done() else True
        self._restart_choice = None
        if not wanted:
            self._emit(RestartGivenUp("cancelled"))
            return False
        self._restarts += 1
        return True

    def _restart_argv(self) -> list[str]:
        if not self._rule.resume:
            return self._argv
        return resume_argv(self._argv, self._memory.run_folder, self._memory.has_checkpoint)

    def _ask_to_stop(self) -> bool:
        return self._stop_asked or self.send(Stop()) is not None

    def _unsent(self, line: int | None, command: Command, error: str) -> None:
        self._emit(CommandUnsent(line, command, error))

    def _lost(self, line: int, reason: str) -> None:
        if (command := self._sent.get(line)) is not None:
            self._unsent(line, command, reason)

    def _emit(self, item: Item) -> None:
        self._memory.learn(item)
        if isinstance(item, Step):
            self._policy.step_done()
        self._on_event(item)
