"""How the trainer's process, its answers to commands and its texts change the run state."""

import signal
from typing import Final, TypeAlias, assert_never

from grpo_protocol.codec import Malformed
from grpo_protocol.commands import Answer, Command, Set
from grpo_protocol.framing import MAX_RECORD_BYTES, Oversized
from grpo_protocol.messages import (
    Ack,
    Applied,
    Complete,
    Dropped,
    Failed,
    Log,
    LogLevel,
    Paused,
    Prompt,
    Resumed,
)
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
from grpo_tui.run_model import ConfigEntry, Mark, Option, Question, RunState
from grpo_tui.run_status import RunStatus
from grpo_tui.sanitize import clean, clean_line

_FAILURE_LIMIT: Final = 2000
_MALFORMED_LIMIT: Final = 2000

_OUR_SIGNALS: Final = {signal.SIGTERM, signal.SIGKILL}

AnswerEvent: TypeAlias = Paused | Resumed | Ack | Applied | Prompt | Complete | Failed
TextEvent: TypeAlias = Log | Dropped | Malformed | Oversized


def apply_answer(state: RunState, event: AnswerEvent, now: float) -> None:
    """Takes the trainer's answers to commands, its questions and its end."""
    match event:
        case Paused():
            state.paused, state.phase = True, None
            state.times.pause(now)
            state.commands.complete("PAUSE", now)
            state.marks.append(Mark(event.step, "pause"))
        case Resumed():
            state.paused, state.phase = False, None
            state.times.resume(now)
            state.commands.complete("RESUME", now)
        case Ack():
            if (command := state.commands.acknowledge(event, now)) and command.error:
                state.logs.add(now, "warn", "app", f"{command.text}: {command.error}")
        case Applied():
            _applied(state, event, now)
        case Prompt():
            state.questions.append(_question(event))
        case Complete():
            _complete(state, event, now)
        case Failed():
            state.failed = event
            hint = f"; {event.hint}" if event.hint else ""
            state.failure = clean_line(event.error + hint, _FAILURE_LIMIT)
            state.logs.add(now, "error", "trainer", event.error + hint)
            _end(state, RunStatus.FAILED, now)
        case _:
            assert_never(event)


def apply_text(state: RunState, event: TextEvent, now: float) -> None:
    """Takes log lines, and lines that are no events."""
    match event:
        case Log():
            state.logs.add(now, event.level, event.source, event.message)
            if event.source == "stderr" and event.message.strip():
                state.last_stderr = clean_line(event.message.strip(), _FAILURE_LIMIT)
        case Dropped():
            _dropped(state, event, now)
        case Malformed():
            _malformed(state, event, now)
        case Oversized():
            state.faults.oversized += 1
            message = f"skipped a line of {event:,} bytes (the most is {MAX_RECORD_BYTES:,})"
            state.logs.add(now, "warn", "app", message)
        case _:
            assert_never(event)


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
                _end(state, RunStatus.CRASHED if code is None else _bad_end(state, code), now)
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
            state.failure = clean_line(notice.error, _FAILURE_LIMIT)
            state.logs.add(now, "error", "app", notice.error)
            _end(state, RunStatus.FAILED, now)
        case Detached():
            state.detached = True
            state.logs.add(now, "info", "app", "let go of the trainer, which goes on")
        case _:
            assert_never(notice)


def _started(state: RunState, notice: ChildStarted, now: float) -> None:
    state.pid = notice.pid
    state.restarts = notice.restart
    state.restart = state.ended = state.exit_code = state.completed = state.failed = None
    state.failure = state.last_stderr = state.phase = state.hello = None
    state.paused = state.loop_started = False
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
    level: LogLevel = "info" if code == 0 else "error"
    state.logs.add(now, level, "app", f"trainer ended: {describe_exit(code)}")
    if code == 0:
        state.failure = None
        if state.ended not in {RunStatus.COMPLETE, RunStatus.STOPPED}:
            _end(state, RunStatus.STOPPED if stopped else RunStatus.COMPLETE, now)
        return
    if notice.asked and signal_number(code) in _OUR_SIGNALS:
        _end(state, RunStatus.STOPPED, now)
        return
    if state.failure is None:
        told = state.last_stderr
        state.failure = f"{told} ({describe_exit(code)})" if told else describe_exit(code)
    _end(state, _bad_end(state, code), now)


def _bad_end(state: RunState, code: int) -> RunStatus:
    """A trainer that says why it ends has failed; one that does not has crashed."""
    if state.failed is not None or code == 2:
        return RunStatus.FAILED
    return RunStatus.CRASHED


def _end(state: RunState, status: RunStatus, now: float) -> None:
    state.ended = status
    state.phase = None
    state.times.end(now)


def _complete(state: RunState, event: Complete, now: float) -> None:
    state.completed = event
    stopped = event.status == "stopped" or (
        event.status is None and bool(state.commands.pending("STOP"))
    )
    state.commands.complete("STOP", now)
    _end(state, RunStatus.STOPPED if stopped else RunStatus.COMPLETE, now)
    reason = f": {event.reason}" if event.reason else ""
    word = "stopped" if stopped else "completed"
    message = f"{word} after {event.total_steps} steps, {event.total_time_secs:.0f} s{reason}"
    state.logs.add(now, "info", "trainer", message)


def _applied(state: RunState, event: Applied, now: float) -> None:
    state.phase = None
    if (command := state.commands.apply(event, now)) is None:
        return
    if command.error:
        state.logs.add(now, "error", "app", f"{command.text}: {command.error}")
    elif command.text.startswith("SET "):
        key, _, value = command.text.removeprefix("SET ").partition("=")
        step = state.progress.step if event.step is None else event.step
        state.marks.append(Mark(step, "setting", f"{key}={value}"))
        state.config = [_changed(entry, key, value) for entry in state.config]


def _changed(entry: ConfigEntry, key: str, value: str) -> ConfigEntry:
    if entry.key != key:
        return entry
    return ConfigEntry(entry.group, entry.key, value, False, entry.live)


def _sent(state: RunState, line: int, command: Command, now: float) -> None:
    state.commands.sent(line, command, now)
    match command:
        case Set(key="sample_display", value=("all" | "best_worst" | "random") as mode):
            state.sample_mode = mode
        case Answer(id=id_):
            state.questions = [question for question in state.questions if question.id != id_]
        case _:
            pass


def _question(event: Prompt) -> Question:
    return Question(
        # The answer must carry the id as it came, so it stays raw and is never shown.
        id=event.id,
        message=clean(event.message, _FAILURE_LIMIT),
        options=tuple(
            Option(
                choice.value,
                clean_line(choice.label),
                None if choice.description is None else clean_line(choice.description),
            )
            for choice in event.choices
        ),
        multi_select=event.multi_select,
        default=tuple(index for index in event.default if 0 <= index < len(event.choices)),
    )


def _dropped(state: RunState, event: Dropped, now: float) -> None:
    faults = state.faults
    faults.dropped_generations += event.generations
    faults.dropped_logs += event.logs
    faults.dropped_phases += event.phases
    faults.dropped_steps += event.steps
    state.logs.add(
        now,
        "warn",
        "app",
        f"this dashboard was too slow: {event.steps} steps, {event.generations} completions and "
        f"{event.logs} log lines were left out; the database has the steps and completions",
    )


def _malformed(state: RunState, event: Malformed, now: float) -> None:
    text = event.text
    if not text.lstrip().startswith("{"):
        state.faults.stray += 1
        state.logs.add(now, "info", "stdout", text)
        return
    state.faults.malformed += 1
    shown = text if len(text) <= _MALFORMED_LIMIT else text[:_MALFORMED_LIMIT] + "…"
    state.logs.add(now, "warn", "stdout", f"not understood ({event.reason}): {shown}")
