"""The command `grpo-tui`: reads its words, starts the dashboard, says how the run ended.

Textual is imported only when there is something to show, so that `--help` and `--version` are
quick; mlx never is.
"""

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from grpo_tui.errors import LaunchError
from grpo_tui.exit_codes import BAD_INPUT
from grpo_tui.launch import LaunchPlan, RestartRule
from grpo_tui.tty_check import needs_ascii, terminal_problem

if TYPE_CHECKING:
    from grpo_tui.state.run_model import RunState

_OWN_FLAGS: Final = ("--ascii", "--no-mouse", "--auto-restart", "--no-auto-restart")
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_TRAINER_COMMANDS: Final = ("demo", "train")

_EPILOG: Final = """\
All other words after `demo` and `train` go to the trainer unchanged:
  --output-dir DIR  --run-name NAME  --resume [latest or PATH]  and any setting as key=value,
  such as max_steps=8 seed=3 save_interval=2. `grpo-trainer train --help` lists them.
Exit codes: 0 done or stopped, 1 failed, 2 bad input, 128+n died on signal n.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        plan = plan_of(words)
        code = show(plan)
    except LaunchError as error:
        print(f"grpo-tui: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def plan_of(words: Sequence[str]) -> LaunchPlan:
    """What the command line asks for. Raises `LaunchError`, or `SystemExit` as argparse does."""
    own, rest = _split(words)
    options = _parser().parse_args(own)
    command: str | None = options.command
    if command in _TRAINER_COMMANDS:
        return _trainer_plan(command, rest, options)
    if command == "run":
        return _program_plan(rest, options)
    if command == "open":
        return _open_plan(Path(options.path), options)
    return LaunchPlan(
        "runs", path=Path.cwd(), ascii=_ascii(options), mouse=not options.no_mouse, name="runs"
    )


def show(plan: LaunchPlan) -> int:
    """Runs the dashboard and returns the exit code."""
    if problem := terminal_problem():
        instead = "use `grpo-trainer` instead" if plan.mode == "live" else "start it in a terminal"
        raise LaunchError(f"{problem}, so there is no dashboard; {instead}", BAD_INPUT)
    from grpo_tui.app import GrpoApp

    app = GrpoApp(plan)
    app.run(mouse=plan.mouse)
    state: RunState = app.state
    if app.broken_off is not None:
        if app.broken_off > 128 and plan.mode == "live":
            _tell_of_signal(state)
        # A crash has told of itself already.
        return app.broken_off
    if plan.mode != "live":
        return 0
    from grpo_tui.run_summary import exit_code_of, summary_lines

    for line in summary_lines(state):
        _say(line, sys.stdout)
    if state.failure and not state.detached:
        _say(f"grpo-tui: {state.failure}", sys.stderr)
    return exit_code_of(state)


def _say(line: str, stream: TextIO) -> None:
    """Prints `line`; what the encoding of `stream` lacks becomes a question mark."""
    encoding = stream.encoding or "utf-8"
    print(line.encode(encoding, "replace").decode(encoding), file=stream)


def _tell_of_signal(state: "RunState") -> None:
    """The same lines as after another end; a terminal that is gone gets none."""
    from grpo_tui.run_summary import left_behind_lines

    text = "".join(f"{line}\n" for line in left_behind_lines(state))
    with suppress(OSError):
        # Not through `sys.stderr`, whose last flush would fail again and change the exit code.
        os.write(2, text.encode(errors="replace"))


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own words, and those for the trainer or the program to run."""
    command = next((word for word in words if not word.startswith("-")), None)
    if command == "run":
        place = words.index("--") if "--" in words else len(words)
        return list(words[:place]), list(words[place + 1 :])
    if command not in _TRAINER_COMMANDS:
        return list(words), []
    place = words.index(command)
    after = words[place + 1 :]
    # Before a value-taking option could swallow it, `--help` is ours as well.
    own = [word for word in after if word in (*_OWN_FLAGS, "-h", "--help")]
    return [*words[: place + 1], *own], [word for word in after if word not in own]


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")
    shared.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    restart = argparse.ArgumentParser(add_help=False)
    restart.add_argument(
        "--no-auto-restart", action="store_true", help="do not restart a trainer that crashed"
    )
    restart.add_argument(
        "--auto-restart", action="store_true", help="restart it (the default of demo and train)"
    )
    parser = argparse.ArgumentParser(
        prog="grpo-tui",
        description="A terminal dashboard that trains a language model with GRPO and shows it "
        "live. Without a command: the runs of the current folder.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[shared],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"grpo-tui {version('grpo-tui')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, help_, parents in (
        ("demo", "train the bundled tiny model on the bundled task", [shared, restart]),
        ("train", "train: [CONFIG.toml] [--model … --data … --reward … key=value …]", None),
        ("run", "watch any program that speaks the protocol: run -- CMD …", [shared, restart]),
        ("open", "browse a run folder or an outputs.db, read-only", [shared]),
    ):
        sub = commands.add_parser(
            name,
            help=help_,
            description=help_,
            parents=[shared, restart] if parents is None else parents,
            epilog=_EPILOG if name in _TRAINER_COMMANDS else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == "open":
            sub.add_argument("path", metavar="PATH", help="run folder or database")
    return parser


def _trainer_plan(command: str, rest: list[str], options: argparse.Namespace) -> LaunchPlan:
    if missing := missing_trainer():
        raise LaunchError(missing, 1)
    return LaunchPlan(
        "live",
        # -P: a file of the current folder must not stand in for a module of the trainer.
        argv=(sys.executable, "-P", "-m", "grpo_trainer", command, *rest),
        name="demo" if command == "demo" else _model_name(rest),
        restart=RestartRule(enabled=not options.no_auto_restart, resume=True),
        ascii=_ascii(options),
        mouse=not options.no_mouse,
    )


def _program_plan(rest: list[str], options: argparse.Namespace) -> LaunchPlan:
    if not rest:
        raise LaunchError(
            "no program to run; write it after two dashes: grpo-tui run -- python train.py",
            BAD_INPUT,
        )
    if shutil.which(rest[0]) is None:
        raise LaunchError(
            f"program {rest[0]!r} was not found; check its name, or give its path", BAD_INPUT
        )
    return LaunchPlan(
        "live",
        argv=tuple(rest),
        name=Path(rest[-1] if len(rest) > 1 and rest[-1].endswith(".py") else rest[0]).name,
        restart=RestartRule(enabled=options.auto_restart and not options.no_auto_restart),
        ascii=_ascii(options),
        mouse=not options.no_mouse,
    )


def _open_plan(path: Path, options: argparse.Namespace) -> LaunchPlan:
    if not path.exists():
        raise LaunchError(
            f"{path}: no such file or folder; give a run folder or its outputs.db", BAD_INPUT
        )
    if problem := _unreadable(path):
        raise LaunchError(f"{path}: {problem}; give a run folder or its outputs.db", BAD_INPUT)
    return LaunchPlan(
        "open",
        path=path,
        name=path.name,
        ascii=_ascii(options),
        mouse=not options.no_mouse,
    )


def _unreadable(path: Path) -> str | None:
    """Why the file at `path` cannot be a record. One without any bytes may just be made."""
    if path.is_dir():
        return None
    if not path.is_file():
        return "neither a folder nor a file"
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if head in {b"", _SQLITE_MAGIC} else "not an SQLite database"


def _ascii(options: argparse.Namespace) -> bool:
    return bool(options.ascii) or needs_ascii()


def _model_name(words: Sequence[str]) -> str:
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, _, value = word.partition("=")
        if name in {"--model", "model"}:
            return Path(value or following).name
    return next((Path(word).stem for word in words if word.endswith(".toml")), "train")


def missing_trainer() -> str | None:
    """The one line that says what to install, or None. Imports nothing of the trainer."""
    extra = "[cpu]" if sys.platform.startswith("linux") else ""
    install = f"pip install 'grpo-tui{extra}'"
    if importlib.util.find_spec("grpo_trainer") is None:
        return f"the trainer is not installed; {install}"
    mlx = importlib.util.find_spec("mlx")
    if mlx is None or not _has_library(mlx.submodule_search_locations or ()):
        return f"mlx, which trains the model, is not installed; {install}"
    return None


def _has_library(folders: Sequence[str]) -> bool:
    """On Linux mlx alone is not enough: the package of a back end holds the library."""
    if not sys.platform.startswith("linux"):
        return True
    return any((Path(folder) / "lib" / "libmlx.so").exists() for folder in folders)


if __name__ == "__main__":
    main()
