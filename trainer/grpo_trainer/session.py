"""What a run holds of the outside world: its folder, its listeners, its commands, its signals."""

import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_protocol import ConfigError
from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import Failed
from grpo_trainer.control import Control, read_commands, signals_stop
from grpo_trainer.errors import TrainerError
from grpo_trainer.output.console import Console
from grpo_trainer.output.reporter import Reporter, event_mode
from grpo_trainer.rewards.types import RewardError
from grpo_trainer.run_folder import RunFolder, new_run_path


@dataclass(frozen=True)
class Session:
    """Made by `open_session`."""

    folder: Path
    reporter: Reporter
    control: Control


@contextmanager
def open_session(config: GRPOConfig, reporter: Reporter | None = None) -> Iterator[Session]:
    """Claims the run's folder, starts telling what happens, and listens for commands and signals.

    In event mode stdout and stdin are taken over until the end, when both are given back. An error
    that leaves the block is told as `failed`, and raised. Raises `ConfigError` for the folder.
    """
    reporter = reporter or Reporter()
    events = event_mode(config)
    reporter.open(events=events, console=None if events else _console(config))
    try:
        control = Control(config, reporter.emit)
        resuming = config.resume_from_checkpoint is not None
        with ExitStack() as stack:
            folder = stack.enter_context(RunFolder.claim(run_path(config), resuming))
            stack.enter_context(signals_stop(control))
            if events:
                stack.enter_context(_listening(config, reporter, control))
            elif reporter.console is not None:
                reporter.console.start(folder.path)
            yield Session(folder.path, reporter, control)
    except BaseException as error:
        tell_failure(reporter, error)
        raise
    finally:
        reporter.close()


def tell_failure(reporter: Reporter, error: BaseException) -> None:
    """Says why the run ends, with the details for the log, unless that was said already."""
    if reporter.told_failure is error:
        return
    reporter.told_failure = error
    if detail := _detail(error):
        reporter.log("debug", detail)
    reporter.emit(Failed(one_line(error), exit_code(error)))


def _detail(error: BaseException) -> str:
    """What the log keeps beyond the one line: the traceback of what was not foreseen."""
    if isinstance(error, RewardError):
        return error.detail
    if isinstance(error, ConfigError):
        return "\n".join(getattr(error, "__notes__", []))
    return "" if isinstance(error, TrainerError) else "".join(traceback.format_exception(error))


def _console(config: GRPOConfig) -> Console:
    return Console(log_console=config.log_console, log_interval=config.log_interval)


def run_path(config: GRPOConfig) -> Path:
    """The folder that `config` names, that of the checkpoint to resume, or a new one."""
    if config.output_dir is not None:
        return Path(config.output_dir).expanduser()
    resume = config.resume_from_checkpoint
    if resume not in (None, "latest"):
        return Path(resume).expanduser().resolve().parent
    if resume == "latest":
        raise ConfigError("resume_from_checkpoint='latest': name the run's folder by --output-dir")
    return new_run_path(config.run_name or display_name(config))


def display_name(config: GRPOConfig) -> str:
    """What people call the model."""
    return config.model_name or Path(config.model or "model").name


def exit_code(error: BaseException) -> int:
    """What a command returns for `error`."""
    if isinstance(error, ConfigError):
        return 2
    return error.exit_code if isinstance(error, TrainerError) else 1


def one_line(error: BaseException) -> str:
    """The message of `error`, or its type when it has none."""
    text = " ".join(str(error).split())
    if isinstance(error, ConfigError | TrainerError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def _listening(config: GRPOConfig, reporter: Reporter, control: Control) -> Iterator[None]:
    """Takes commands from stdin."""

    def lost() -> None:
        control.unattended = True
        if config.on_dashboard_exit == "stop":
            control.request_stop()

    reporter.on_reader_gone = lost
    with read_commands(control, 0, on_end=lost):
        yield
