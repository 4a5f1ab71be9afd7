"""The state of the run in hand, and the one function that changes it.

Everything the dashboard shows is in `RunState`; `apply` takes each event of the trainer and each
notice about its process, in the order in which they came.
"""

from typing import assert_never

from grpo_protocol.codec import Malformed
from grpo_protocol.framing import Oversized
from grpo_protocol.messages import (
    Ack,
    Applied,
    Checkpoint,
    Complete,
    DatabasePath,
    Dropped,
    EpochEnd,
    EpochStart,
    Eval,
    Failed,
    Generation,
    Hello,
    Init,
    Log,
    Paused,
    PhaseChange,
    Prompt,
    Resumed,
    ResumeState,
    Status,
    Step,
)
from grpo_tui import notices
from grpo_tui.notices import Item, Notice
from grpo_tui.state.apply_answers import apply_answer, apply_text
from grpo_tui.state.apply_process import apply_notice
from grpo_tui.state.apply_training import apply_loop, apply_setup
from grpo_tui.state.restore import StoredStep, restore_steps
from grpo_tui.state.run_model import RunState
from grpo_tui.state.run_status import RunStatus

__all__ = ["RunState", "RunStatus", "StoredStep", "apply", "restore_steps"]


def apply(state: RunState, item: Item) -> None:
    """Changes `state` by one event or notice."""
    state.version += 1
    now = state.clock()
    match item:
        case Hello() | Status() | DatabasePath() | ResumeState() | Init():
            apply_setup(state, item, now)
        case EpochStart() | PhaseChange() | Step() | Generation() | Checkpoint():
            apply_loop(state, item, now)
        case Eval() | EpochEnd():
            apply_loop(state, item, now)
        case Paused() | Resumed() | Ack() | Applied() | Prompt() | Complete() | Failed():
            apply_answer(state, item, now)
        case Log() | Dropped() | Malformed() | Oversized():
            apply_text(state, item, now)
        case (
            notices.ChildStarted()
            | notices.ChildExited()
            | notices.SpawnFailed()
            | notices.RestartScheduled()
            | notices.RestartGivenUp()
            | notices.CommandSent()
            | notices.CommandUnsent()
            | notices.QuitStage()
            | notices.Detached()
            | notices.InvalidUtf8()
            | notices.StreamEnded()
            | notices.SampleModeChosen()
            | notices.AppNote()
        ):
            apply_notice(state, item, now)
        case _:
            assert_never(item)
    if not isinstance(item, Notice):
        state.times.last_event = now
