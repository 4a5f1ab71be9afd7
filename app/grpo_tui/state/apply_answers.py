"""How the trainer's answers to commands, its end and its texts change the run state."""

from typing import Final, TypeAlias, assert_never

from grpo_protocol.codec import Malformed
from grpo_protocol.framing import MAX_RECORD_BYTES, Oversized
from grpo_protocol.messages import (
    Ack,
    Applied,
    Complete,
    Dropped,
    Failed,
    Log,
    Paused,
    Prompt,
    Resumed,
)
from grpo_tui.sanitize import clean, clean_line
from grpo_tui.state.history import want_past
from grpo_tui.state.run_model import ConfigEntry, Mark, Option, Question, RunState
from grpo_tui.state.run_status import RunStatus

FAILURE_LIMIT: Final = 2000
_MALFORMED_LIMIT: Final = 2000

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
            _failed(state, event, now)
        case _:
            assert_never(event)


def apply_text(state: RunState, event: TextEvent, now: float) -> None:
    """Takes log lines, and lines that are no events."""
    match event:
        case Log():
            state.logs.add(now, event.level, event.source, event.message)
            if event.source == "stderr" and event.message.strip():
                state.last_stderr = clean_line(event.message.strip(), FAILURE_LIMIT)
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


def end_run(state: RunState, status: RunStatus, now: float) -> None:
    """The run is over, unless a restart follows."""
    state.ended = status
    state.phase = None
    state.times.end(now)


def _failed(state: RunState, event: Failed, now: float) -> None:
    hint = f"; {event.hint}" if event.hint else ""
    state.has_failed = True
    state.failure = clean_line(event.error + hint, FAILURE_LIMIT)
    state.logs.add(now, "error", "trainer", event.error + hint)
    end_run(state, RunStatus.FAILED, now)


def _complete(state: RunState, event: Complete, now: float) -> None:
    stopped = event.status == "stopped" or (
        event.status is None and bool(state.commands.pending("STOP"))
    )
    state.commands.complete("STOP", now)
    end_run(state, RunStatus.STOPPED if stopped else RunStatus.COMPLETE, now)
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


def _question(event: Prompt) -> Question:
    return Question(
        # The answer must carry the id as it came, so it stays raw and is never shown.
        id=event.id,
        message=clean(event.message, FAILURE_LIMIT),
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
    if event.steps > 0:
        want_past(state, state.progress.step)
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
