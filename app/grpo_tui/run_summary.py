"""What the shell learns when the dashboard has closed: two lines and an exit code."""

import shlex
from pathlib import Path

from grpo_tui.exit_codes import shell_code
from grpo_tui.state.run_model import RunState
from grpo_tui.state.run_status import RunStatus


def exit_code_of(state: RunState) -> int:
    """0 done, stopped or let go; otherwise how the trainer ended."""
    if state.detached or state.ended in {RunStatus.COMPLETE, RunStatus.STOPPED}:
        return 0
    if state.exit_code is None:
        return 1
    return shell_code(state.exit_code)


def summary_lines(state: RunState) -> list[str]:
    """Where the run lies and how to go on with it. Nothing for a run that never began."""
    folder = run_folder(state)
    if folder is None:
        return []
    word = (RunStatus.CRASHED if state.restart else state.status).word
    if state.detached:
        word = "goes on without the dashboard"
    first = f"run {state.run_name or folder.name}: {word} after {state.progress.step} steps"
    saved = state.last_checkpoint
    if state.detached:
        return [f"{first}, process {state.pid}", f"folder {folder}"]
    if saved is None:
        return [f"{first}, folder {folder}", "no checkpoint was written"]
    second = f"last checkpoint {saved.path}"
    if state.ended is not RunStatus.COMPLETE:
        resume = f"--resume latest --output-dir {shlex.quote(str(folder))}"
        second += f"; go on with the same command and {resume}"
    return [f"{first}, folder {folder}", second]


def run_folder(state: RunState) -> Path | None:
    """The folder of the run, as far as the trainer has told."""
    if state.output_dir is not None:
        return Path(state.output_dir)
    if state.last_checkpoint is not None:
        return Path(state.last_checkpoint.path).parent
    return Path(state.database_path).parent if state.database_path else None
