"""How the life of the trainer's process and its pipes changes the run state."""

import signal
from typing import Final, assert_never

from grpo_protocol.commands import Answer, Command, Set
from grpo_protocol.messages import LogLevel
from grpo_tui.exit_codes import describe_exit, signal_number
from grpo_tui.notices import (
    AppNote,
    ChildExited,
    ChildStarted,
    CommandSent,
    CommandUnsent,
    Detached,
    InvalidUtf8,
    Notice,
    QuitStage,
    RestartGivenUp,
    RestartScheduled,
    SampleModeChosen,
    SpawnFailed,
    StreamEnded,
)
from grpo_tui.sanitize import clean_line
from grpo_tui.state.apply_answers import FAILURE_LIMIT, end_run
from grpo_tui.state.run_model import Mark, RunState
from grpo_tui.state.run_status import RunStatus

_OUR_SIGNALS: Final = {signal.SIGTERM, signal.SIGKILL}


def apply_notice(state: RunState, notice: Notice, now: float) -> None:
    """Takes what happened around the process and its pipes."""
    match notice:
        case ChildStarted() | ChildExited() | SpawnFailed() | Detached():
            _apply_process(state, notice, now)
        case RestartScheduled():
            state.restart, state.ended = notice, None
            wait = max(0.0, notice.at - now)
            message = f"restart {notice.attempt} in {wait:.0f} s"
            state.logs.add(now, "warn", "app", message)
        case RestartGivenUp():
            state.restart = None
            state.logs.add(now, "warn", "app", f"no restart: {notice.reason}")
            if state.ended is None:
                code = state.exit_code
                end_run(state, RunStatus.CRASHED if code is None else _bad_end(state, code), now)
        case CommandSent():
            _sent(state, notice.line, notice.command, now)
        case CommandUnsent():
            command = state.commands.unsent(notice.line, notice.command, notice.error, now)
            state.logs.add(now, "error", "app", f"{command.text} was not sent: {notice.error}")
        case QuitStage():
            state.quit = notice
        case InvalidUtf8():
            state.faults.invalid_utf8 += 1
            message = f"{notice.stream} held bytes that are not UTF-8; they were replaced"
            state.logs.add(now, "warn", "app", message)
        case StreamEnded():
            message = f"the trainer closed its {notice.stream}"
            state.logs.add(now, "warn", "app", message)
        case SampleModeChosen():
            state.sample_mode = notice.mode
        case AppNote():
            state.logs.add(now, notice.level, "app", notice.message)
        case _:
            assert_never(notice)


def _apply_process(
    state: RunState, notice: ChildStarted | ChildExited | SpawnFailed | Detached, now: float
) -> None:
    match notice:
        case ChildStarted():
            _started(state, notice, now)
        case ChildExited():
            _exited(state, notice, now)
        case SpawnFailed():
            state.failure = clean_line(notice.error, FAILURE_LIMIT)
            state.logs.add(now, "error", "app", notice.error)
            end_run(state, RunStatus.FAILED, now)
        case Detached():
            state.detached = True
            state.logs.add(now, "info", "app", "let go of the trainer, which goes on")
        case _:
            assert_never(notice)


def _started(state: RunState, notice: ChildStarted, now: float) -> None:
    state.pid = notice.pid
    state.restarts = notice.restart
    state.restart = state.ended = state.exit_code = None
    state.failure = state.last_stderr = state.phase = state.hello = None
    state.paused = state.loop_started = state.has_failed = state.resumed = False
    state.loading_message = ""
    state.questions.clear()
    state.times.start(now)
    if notice.restart:
        state.marks.append(Mark(state.progress.step, "restart", f"restart {notice.restart}"))
        message = f"trainer started again (restart {notice.restart}), process {notice.pid}"
    else:
        message = f"trainer started, process {notice.pid}"
    state.logs.add(now, "info", "app", message)


def _exited(state: RunState, notice: ChildExited, now: float) -> None:
    code = notice.returncode
    state.pid, state.exit_code, state.phase, state.paused = None, code, None, False
    stopped = bool(state.commands.pending("STOP")) or notice.asked
    state.commands.trainer_ended(now, code)
    state.questions.clear()
    closed = state.ended in {RunStatus.COMPLETE, RunStatus.STOPPED}
    level: LogLevel = "info" if code == 0 or closed else "error"
    state.logs.add(now, level, "app", f"trainer ended: {describe_exit(code)}")
    if code == 0 or closed:
        state.failure = None
        if not closed:
            end_run(state, RunStatus.STOPPED if stopped else RunStatus.COMPLETE, now)
        return
    if notice.asked and signal_number(code) in _OUR_SIGNALS:
        end_run(state, RunStatus.STOPPED, now)
        return
    if state.failure is None:
        told = state.last_stderr
        state.failure = f"{told} ({describe_exit(code)})" if told else describe_exit(code)
    end_run(state, _bad_end(state, code), now)


def _bad_end(state: RunState, code: int) -> RunStatus:
    """A trainer that says why it ends has failed; one that does not has crashed."""
    if state.has_failed or code == 2:
        return RunStatus.FAILED
    return RunStatus.CRASHED


def _sent(state: RunState, line: int, command: Command, now: float) -> None:
    state.commands.sent(line, command, now)
    match command:
        case Set(key="sample_display", value=("all" | "best_worst" | "random") as mode):
            state.sample_mode = mode
        case Answer(id=id_):
            state.questions = [question for question in state.questions if question.id != id_]
        case _:
            pass
