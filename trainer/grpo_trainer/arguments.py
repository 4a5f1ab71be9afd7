"""The command line's words, turned into a checked config."""

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn

from grpo_protocol.config import ConfigKey, GRPOConfig, config_keys
from grpo_protocol.config_input import ConfigError, load_config, parse_assignments, read_toml

_OPTIONS = {
    "model": "folder of an mlx-lm model, or its hub id",
    "data": "dataset to train on: .jsonl or .json",
    "eval_data": "held-out dataset, decoded greedily before, between and after",
    "output_dir": "folder of the run; a new outputs/NAME without it",
    "run_name": "name of the run",
}
_DESCRIPTION = """Trains a language model with GRPO.

commands:
  train     your model on your data
  demo      the bundled model on the bundled task
  selftest  whether a model trains right; writes nothing"""
_LEAST_WIDTH = 40
"""Columns of the help on a terminal that is narrower, or that has no width."""


@dataclass(frozen=True)
class Arguments:
    """What was asked for."""

    command: str
    config: GRPOConfig
    debug: bool


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong; the usage is one `--help` away."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `{self.prog} --help` lists what there is")


def parse_arguments(argv: Sequence[str], defaults: dict[str, dict[str, Any]]) -> Arguments:
    """The command and its config. `defaults` holds each command's own settings.

    Raises `ConfigError`; leaves with status 0 after `--help` and `--version`.
    """
    options = _parser(list(defaults)).parse_intermixed_args(_plain_resume(argv))
    if options.command is None:
        raise ConfigError(f"no command: use one of {', '.join(defaults)}")
    files = [word for word in options.words if word.endswith(".toml") and "=" not in word]
    if len(files) > 1:
        raise ConfigError(f"two config files, {files[0]} and {files[1]}: name one")
    values = {**defaults[options.command], **(read_toml(Path(files[0])) if files else {})}
    for key in _OPTIONS:
        if (value := getattr(options, key)) is not None:
            values[key] = value
    if options.reward:
        values["reward"] = options.reward
    if options.resume is not None:
        values["resume_from_checkpoint"] = options.resume
    if options.events:
        values["tui_mode"] = True
    words = [word for word in options.words if word not in files]
    config = load_config(values, parse_assignments(words))
    return Arguments(options.command, config, options.debug)


def _plain_resume(argv: Sequence[str]) -> list[str]:
    """Gives a bare `--resume` its value, so that it does not swallow a setting that follows."""
    words = list(argv)
    for index, word in enumerate(argv):
        following = argv[index + 1] if index + 1 < len(argv) else "--"
        if word == "--resume" and (following.startswith("-") or _is_setting(following)):
            words[index] = "--resume=latest"
    return words


def _is_setting(word: str) -> bool:
    """Whether `word` sets a config key; the path of a run may hold a `=` as well."""
    name, separator, _ = word.partition("=")
    key = name.strip().partition(".")[0].replace("-", "_")
    return bool(separator) and key in {known.name for known in config_keys()}


def _parser(commands: list[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="grpo-trainer",
        description=_DESCRIPTION,
        epilog=_describe_keys(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"grpo-trainer {version('grpo-tui')}"
    )
    parser.add_argument("command", nargs="?", choices=commands, help="one of those above")
    for key, description in _OPTIONS.items():
        parser.add_argument(f"--{key.replace('_', '-')}", metavar="X", help=description)
    parser.add_argument(
        "--reward", action="append", metavar="FILE.py[:NAME]", help="reward function; repeatable"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="latest",
        metavar="PATH",
        help="go on from a checkpoint folder, or from the latest in --output-dir",
    )
    parser.add_argument("--events", action="store_true", help="JSONL on stdout, commands on stdin")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("words", nargs="*", metavar="CONFIG.toml | key=value")
    return parser


def _describe_keys() -> str:
    lines = [
        "settings (key=value, or a TOML file), each with its default;",
        "while training, SET key=value changes those marked live:",
    ]
    group = ""
    for key in config_keys():
        if key.group != group:
            group = key.group
            lines.append(f"\n  {group}")
        lines += map(_describe_key, key.keys or (key,))
    return "\n".join(lines)


def _describe_key(key: ConfigKey) -> str:
    live = " (live)" if key.live else ""
    choices = f" One of {', '.join(key.choices)}." if key.choices else ""
    return textwrap.fill(
        f"{key.name}={_show(key.default)}{live}  {key.description}{choices}",
        width=max(_LEAST_WIDTH, get_terminal_size().columns - 2),
        initial_indent="    ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _show(default: Any) -> str:
    """`default` as it can be typed."""
    return str(default).lower() if isinstance(default, bool | None) else str(default)


def wants_events(argv: Sequence[str]) -> bool | None:
    """Whether the words ask for events, before they are understood; `None` when none says so."""
    for word in argv:
        key, _, value = word.partition("=")
        if word == "--events" or key.replace("-", "_") == "tui_mode":
            return word == "--events" or value.lower() in ("true", "1", "yes", "on")
    return None
