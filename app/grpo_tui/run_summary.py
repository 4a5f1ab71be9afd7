"""What the shell learns when the dashboard has closed: a few lines and an exit code."""

import shlex
from pathlib import Path
from typing import Final

from grpo_tui.drawing.formatting import number
from grpo_tui.exit_codes import shell_code
from grpo_tui.state.metric_names import REWARD
from grpo_tui.state.run_model import RunState
from grpo_tui.state.run_status import RunStatus

_FUNCTION: Final = "rewards/"
"""Before the names of the reward functions."""


def exit_code_of(state: RunState) -> int:
    """0 done, stopped or let go; otherwise how the trainer ended."""
    if state.detached or state.ended in {RunStatus.COMPLETE, RunStatus.STOPPED}:
        return 0
    if state.exit_code is None:
        return 1
    return shell_code(state.exit_code)


def summary_lines(state: RunState) -> list[str]:
    """Where the run lies and how to go on with it. Nothing for a run that never began."""
    if state.detached:
        return _goes_on_lines(state)
    folder = run_folder(state)
    if folder is None:
        return []
    word = (RunStatus.CRASHED if state.restart else state.status).word
    first = f"{_name(state, folder)}: {word} after {state.progress.step} steps, folder {folder}"
    return [first, *evaluation_lines(state), _checkpoint_line(state, folder)]


def left_behind_lines(state: RunState) -> list[str]:
    """What goes on without the dashboard, if anything does; otherwise how the run ended."""
    return summary_lines(state) if state.pid is None else _goes_on_lines(state)


def _goes_on_lines(state: RunState) -> list[str]:
    folder = run_folder(state)
    if folder is None:
        return [f"training goes on without the dashboard, process {state.pid}"]
    steps = f"after {state.progress.step} steps"
    return [
        f"{_name(state, folder)}: goes on without the dashboard {steps}, process {state.pid}",
        f"folder {folder}",
    ]


def evaluation_lines(state: RunState) -> list[str]:
    """What training has changed: the first result on held-out prompts and the last one."""
    if not state.evaluations:
        return []
    last = state.evaluations[-1]
    first = next(result for result in state.evaluations if result.name == last.name)
    if first is last:
        return []
    functions = [key for key in last.metrics if key.startswith(_FUNCTION)]
    changes = [
        _change(key, first.metrics[key], last.metrics[key])
        for key in (*functions, REWARD)
        if key in first.metrics and key in last.metrics
    ]
    return [f"{last.name}: {', '.join(changes)}"] if changes else []


def _change(key: str, first: float | None, last: float | None) -> str:
    values = [number(value) for value in (first, last)]
    if key == REWARD:
        return f"reward {values[0]} → {values[1]}"
    if all(value is not None and 0 <= value <= 1 for value in (first, last)):
        values = [f"{100 * (value or 0.0):.1f} %" for value in (first, last)]
    return f"{key.removeprefix(_FUNCTION).removesuffix('/mean')} {values[0]} → {values[1]}"


def _name(state: RunState, folder: Path) -> str:
    return f"run {state.run_name or folder.name}"


def _checkpoint_line(state: RunState, folder: Path) -> str:
    saved = state.last_checkpoint
    if saved is None:
        return "no checkpoint was written"
    second = f"last checkpoint {saved.path}"
    if state.ended is not RunStatus.COMPLETE:
        resume = f"--resume latest --output-dir {shlex.quote(str(folder))}"
        second += f"; go on with the same command and {resume}"
    return second


def run_folder(state: RunState) -> Path | None:
    """The folder of the run, as far as the trainer has told."""
    if state.output_dir is not None:
        return Path(state.output_dir)
    if state.last_checkpoint is not None:
        return Path(state.last_checkpoint.path).parent
    return Path(state.database_path).parent if state.database_path else None
