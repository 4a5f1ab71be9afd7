"""The `grpo-trainer` command: a thin layer over `GRPOTrainer`."""

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_protocol.codec import encode_event
from grpo_protocol.config_input import ConfigError
from grpo_protocol.messages import Failed
from grpo_trainer import blas
from grpo_trainer.arguments import Arguments, parse_arguments, wants_events
from grpo_trainer.demo import settings as demo_settings
from grpo_trainer.errors import TrainerError
from grpo_trainer.output.reporter import event_mode
from grpo_trainer.session import Session, exit_code, one_line, open_session

if TYPE_CHECKING:
    from grpo_trainer.trainer import TrainResult


_COMMANDS: dict[str, dict[str, Any]] = {
    "train": {},
    "demo": demo_settings.SETTINGS,
    "selftest": {},
}
"""Each command's own settings."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0 when done or stopped on request, 1 failed, 2 bad input, 128+n."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = parse_arguments(words, _COMMANDS)
    except ConfigError as error:
        asked = wants_events(words)
        return _refuse(error, events=event_mode(None) if asked is None else asked)
    is_selftest = arguments.command == "selftest"
    try:
        if is_selftest:
            return _selftest(arguments)
        with open_session(arguments.config) as session:
            result = _run(arguments, session)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # the session has told the dashboard, or the person, of it
        if arguments.debug:
            traceback.print_exception(error)
        if is_selftest or event_mode(arguments.config):
            _say(error)
        return exit_code(error)
    if result.status == "stopped" and result.signal_number is not None:
        return 128 + result.signal_number
    return 0  # a signal that came when all was done has stopped nothing


def _selftest(arguments: Arguments) -> int:
    """Has no session: it leaves nothing behind, and speaks to people alone."""
    slowness = _slowness()
    if slowness is not None:
        print(f"warning: {blas.complaint(slowness)}", file=sys.stderr)
    from grpo_trainer.selftest.command import run_selftest

    return run_selftest(arguments.config, debug=arguments.debug)


def _slowness() -> tuple[float, str] | None:
    """Loads the BLAS, then mlx; how slow matrix products are if they are, and what helps."""
    found = blas.load()
    _require_mlx()
    return blas.slowness(found)


def _run(arguments: Arguments, session: Session) -> "TrainResult":
    slowness = _slowness()
    if slowness is not None:
        session.reporter.log("warn", blas.complaint(slowness))
    if arguments.command == "demo":
        from grpo_trainer.demo.command import run_demo

        return run_demo(arguments.config, session, slowness[0] if slowness else 1.0)
    return _train(arguments, session)


def _train(arguments: Arguments, session: Session) -> "TrainResult":
    from grpo_trainer.dataset import load_dataset
    from grpo_trainer.trainer import GRPOTrainer

    config = arguments.config
    if not config.data:
        raise ConfigError("data=None: name a dataset with --data FILE.jsonl")
    dataset = load_dataset(config.data)
    held_out = load_dataset(config.eval_data) if config.eval_data else None
    with GRPOTrainer.create(config, session=session) as trainer:
        return trainer.train(dataset, held_out)


def _require_mlx() -> None:
    """On Linux mlx installs without a back end unless an extra names one."""
    try:
        import mlx.core
    except ImportError as error:
        extra = "" if sys.platform == "darwin" else "[cpu]"
        hint = "" if sys.platform == "darwin" else " (or cuda12, cuda13 instead of cpu)"
        raise TrainerError(
            f"mlx cannot be imported: run pip install 'grpo-tui{extra}'{hint}"
        ) from error
    del mlx


def _refuse(error: ConfigError, *, events: bool) -> int:
    """Says in one line what is wrong with the words, before there is anyone else to tell."""
    with contextlib.suppress(OSError):
        if events:
            os.write(1, encode_event(Failed(str(error), 2)))
    _say(error)
    return 2


def _say(error: BaseException) -> None:
    with contextlib.suppress(OSError):
        print(f"grpo-trainer: {one_line(error)}", file=sys.stderr)
