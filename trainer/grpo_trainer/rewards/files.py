"""Reward functions in Python files: what `FILE.py` and `FILE.py:NAME` mean.

Specs are read in the trainer; only the worker process imports the file.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_protocol.config_input import ConfigError
from grpo_trainer.rewards.calling import RewardFunction, describe, reward_function


class ImportFailure(Exception):
    """User code failed while it was imported; `detail` holds the traceback."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True)
class RewardSpec:
    """One function of a file, or all of its reward functions."""

    path: str
    name: str | None


def parse_spec(text: str) -> RewardSpec:
    """The spec in `text`. Raises `ConfigError` unless it names a Python file that exists."""
    file, separator, name = text.rpartition(":")
    if not separator or not name.isidentifier():
        file, name = text, ""
    path = Path(file).expanduser()
    if path.suffix != ".py":
        raise ConfigError(f"reward={text!r}: expected FILE.py or FILE.py:NAME")
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "no such file"
        raise ConfigError(f"reward={text!r}: {problem}: {path.absolute()}; check the path")
    return RewardSpec(str(path.resolve()), name or None)


def load_functions(specs: Sequence[RewardSpec]) -> list[RewardFunction]:
    """The functions of all `specs`, each file imported once.

    Raises `ImportFailure`, or `ConfigError` when a name cannot be used.
    """
    modules: dict[str, ModuleType] = {}
    functions = []
    for spec in specs:
        if spec.path not in modules:
            modules[spec.path] = _import_file(Path(spec.path))
        functions += _select(modules[spec.path], spec)
    return functions


def _import_file(path: Path) -> ModuleType:
    folder = str(path.parent)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"reward_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ImportFailure(
            f"reward file {path}: cannot be imported: {describe(error)}{_line_of(error, path)}",
            "".join(traceback.format_exception(error)),
        ) from error
    return module


def _line_of(error: BaseException, path: Path) -> str:
    """Where in the user's own file the import came to its end."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""


def _select(module: ModuleType, spec: RewardSpec) -> list[RewardFunction]:
    found = {name: item for name, item in vars(module).items() if _is_reward(module, name, item)}
    if spec.name is None:
        if not found:
            raise ConfigError(_none_found(module, spec.path))
        return [reward_function(item, name) for name, item in found.items()]
    item = getattr(module, spec.name, None)
    if not hasattr(module, spec.name):
        names = ", ".join(found) or "none"
        raise ConfigError(
            f"reward file {spec.path}: no `{spec.name}` in it; reward functions found: {names}"
        )
    if not callable(item) or inspect.isclass(item):
        kind = "a class; name an instance of it" if inspect.isclass(item) else type(item).__name__
        raise ConfigError(f"reward file {spec.path}: `{spec.name}` is no function but {kind}")
    return [reward_function(item, spec.name)]


def _is_reward(module: ModuleType, name: str, item: Any) -> bool:
    """Public functions of the file itself that take completions; helpers beside them do not."""
    return (
        inspect.isfunction(item)
        and not name.startswith("_")
        and item.__module__ == module.__name__
        and _takes_completions(item)
    )


def _takes_completions(function: Callable[..., Any]) -> bool:
    return "completions" in inspect.signature(function).parameters


def _none_found(module: ModuleType, path: str) -> str:
    public = [
        name
        for name, item in vars(module).items()
        if inspect.isfunction(item)
        and not name.startswith("_")
        and item.__module__ == module.__name__
    ]
    others = f" (it has {', '.join(public)}; use FILE.py:NAME for another form)" if public else ""
    return (
        f"reward file {path}: no public function with a `completions` parameter{others}; "
        "define `def reward(completions, **kwargs): ...`"
    )
