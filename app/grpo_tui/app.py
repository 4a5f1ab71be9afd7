"""The app: owns the trainer's supervisor and the run state, and redraws on a tick."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Final, get_args

from textual.binding import Binding, BindingType

from grpo_protocol.commands import Answer, Command, Pause, Resume, SaveCheckpoint, Set
from grpo_protocol.config import SampleDisplay
from grpo_tui.announcements import Announcer
from grpo_tui.child.supervisor import Supervisor
from grpo_tui.drawing.glyphs import ASCII, UNICODE
from grpo_tui.drawing.themes import DARK
from grpo_tui.launch import LaunchPlan
from grpo_tui.notices import Item, SampleModeChosen
from grpo_tui.restoring import PastReader
from grpo_tui.run_summary import exit_code_of
from grpo_tui.screens.help import HelpScreen
from grpo_tui.screens.help_sections import HELP_SECTIONS
from grpo_tui.screens.live import LiveScreen
from grpo_tui.screens.quit_dialog import QuitChoice, QuitDialog
from grpo_tui.screens.runs import RunsScreen
from grpo_tui.screens.state_screen import ShowsState
from grpo_tui.screens.stop_dialog import StopDialog
from grpo_tui.screens.trainer_prompt import TrainerPrompt
from grpo_tui.state.run_state import RunState, RunStatus, apply
from grpo_tui.terminal import GuardedApp
from grpo_tui.widgets.thin_scrollbar import use_scrollbars

TICKS_PER_SECOND: Final = 10
_NEEDS_TRAINER: Final = {"pause", "resume", "save"}
_MODES: Final[tuple[SampleDisplay, ...]] = get_args(SampleDisplay)


class GrpoApp(GuardedApp):
    """One dashboard. Its exit code is the trainer's, and 0 for one that was let go."""

    TITLE = "grpo-tui"
    # Absolute, because a subclass elsewhere would look beside itself.
    CSS_PATH = Path(__file__).with_name("app.tcss")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+q,ctrl+c",
            "quit",
            "Quit",
            show=False,
            priority=False,
            id="app.quit_keys",
            tooltip="Quit, stop or detach",
        ),
    ]

    def __init__(self, plan: LaunchPlan, clock: Callable[[], float] = time.time) -> None:
        no_color = bool(os.environ.get("NO_COLOR"))
        super().__init__(ansi_color=True if no_color else None)
        self.plan = plan
        self.state = RunState(clock=clock)
        self.glyphs = ASCII if plan.ascii else UNICODE
        self.supervisor: Supervisor | None = None
        self._announcer = Announcer()
        self._past = PastReader(self.state, plan.cwd, self.receive)
        self._drawn = (-1, -1)
        self._leaving = False
        self._put_off: set[str] = set()
        use_scrollbars(plan.ascii)
        self.set_class(plan.ascii, "-ascii")
        self.register_theme(DARK)
        self.theme = "ansi-dark" if no_color else DARK.name

    def get_key_display(self, binding: Binding) -> str:
        """Words for the keys whose signs not every terminal can draw."""
        words = {"enter": "Enter", "escape": "Esc", "space": "Space", "tab": "Tab"}
        if self.plan.ascii:
            words |= {key: key.title() for key in ("up", "down", "left", "right")}
        return binding.key_display or words.get(binding.key) or super().get_key_display(binding)

    def on_mount(self) -> None:
        plan = self.plan
        if plan.mode != "live":
            self.push_screen(RunsScreen(plan.path or plan.cwd, self.glyphs))
            return
        self.push_screen(LiveScreen(self.state, plan.name, plan.cwd, self.glyphs))
        if plan.argv:
            self.supervisor = Supervisor(
                plan.argv,
                plan.cwd,
                None,
                self.receive,
                self._trainer_ended,
                rule=plan.restart,
                clock=self.state.clock,
            )
            self.run_worker(self.supervisor.run(), group="trainer", name="supervisor")
        self.set_interval(1 / TICKS_PER_SECOND, self.tick)

    def receive(self, item: Item) -> None:
        """Takes an event or notice; the next tick shows it."""
        apply(self.state, item)

    def tick(self) -> None:
        """Redraws the screens in sight if the state has changed, clocks once a second."""
        version, second = self._drawn
        now = (self.state.version, int(self.state.clock()))
        if now == (version, second):
            return
        self._drawn = now
        if self._past.is_due:
            self.run_worker(self._past.read(), group="past", name="past steps")
        changed = now[0] != version
        for screen in self._screens_in_sight():
            screen.show_state(changed=changed)
        if changed:
            for item in self._announcer.news(self.state):
                self.notify(item.text, severity=item.severity, markup=False)
            self._ask_question()

    @property
    def _is_up(self) -> bool:
        return self.is_running and self.screen.is_attached

    def _screens_in_sight(self) -> Iterable[ShowsState]:
        for screen in reversed(self.screen_stack):
            # A screen has no widgets before it is mounted, and none any more while the app ends.
            if screen.is_mounted and self._is_up and isinstance(screen, ShowsState):
                yield screen
            if not screen.is_modal:
                return

    # --- commands to the trainer

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        status = self.state.status
        if action in _NEEDS_TRAINER and (status.ended or status is RunStatus.RESTARTING):
            return False
        match action:
            case "pause":
                if status in {RunStatus.PAUSED, RunStatus.RESUMING}:
                    return False
                return True if status in {RunStatus.RUNNING, RunStatus.SAVING} else None
            case "resume":
                if status not in {RunStatus.PAUSED, RunStatus.RESUMING}:
                    return False
                return True if status is RunStatus.PAUSED else None
            case "save":
                return True if status.active else None
            case "cancel_restart" | "restart_now":
                return self.state.restart is not None
            case "answer":
                return bool(self.state.questions)
            case _:
                return True

    def _send(self, command: Command) -> None:
        if self.supervisor is not None:
            self.supervisor.send(command)

    def action_pause(self) -> None:
        self._send(Pause())

    def action_resume(self) -> None:
        self._send(Resume())

    def action_save(self) -> None:
        self._send(SaveCheckpoint())

    def action_next_mode(self) -> None:
        mode = _MODES[(_MODES.index(self.state.sample_mode) + 1) % len(_MODES)]
        self.receive(SampleModeChosen(mode))
        if self.supervisor is not None and self.supervisor.alive:
            self._send(Set("sample_display", mode))

    def action_cancel_restart(self) -> None:
        if self.supervisor is not None:
            self.supervisor.cancel_restart()

    def action_restart_now(self) -> None:
        if self.supervisor is not None:
            self.supervisor.restart_now()

    def action_answer(self) -> None:
        self._put_off.clear()
        self._ask_question()

    def _ask_question(self) -> None:
        """Puts the oldest question before the person, unless another dialog is open."""
        waiting = [q for q in self.state.questions if q.id not in self._put_off]
        if not waiting or self.screen.is_modal:
            return
        question = waiting[0]

        def answered(values: tuple[str, ...] | None) -> None:
            if values is None:
                self._put_off.add(question.id)
            else:
                self._send(Answer(question.id, values))

        self.push_screen(TrainerPrompt(question, self.glyphs), answered)

    # --- help and leaving

    def action_help(self) -> None:
        self.push_screen(HelpScreen(HELP_SECTIONS))

    async def action_quit(self) -> None:
        """Every way out comes through here."""
        if self.supervisor is None or not self.supervisor.alive:
            self._leave()
        elif self._leaving:
            self.push_screen(StopDialog(self.state))
        elif not isinstance(self.screen, QuitDialog):
            self.push_screen(QuitDialog(self.state), self._quit_chosen)

    def _quit_chosen(self, choice: QuitChoice | None) -> None:
        if self.supervisor is None or choice in {None, "stay"}:
            return
        self._leaving = True
        if not self.supervisor.alive:
            self._leave()
        elif choice == "detach":
            self.supervisor.detach()
        elif choice == "kill":
            self.supervisor.kill_now()
        else:
            patience = self.state.stop_patience
            self.run_worker(self.supervisor.quit(patience), group="quit", name="quit ladder")
            self.push_screen(StopDialog(self.state))

    def action_hurry(self) -> None:
        if self.supervisor is not None:
            self.supervisor.hurry()

    def _trainer_ended(self, code: int | None) -> None:
        if self._leaving:
            self._leave()

    def _leave(self) -> None:
        live = self.plan.mode == "live"
        self.exit(return_code=exit_code_of(self.state) if live else 0)
