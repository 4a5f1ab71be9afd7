"""What a run's numbers depend on besides its checkpoint, and what of it changed at a resume."""

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec

from grpo_protocol.config import GRPOConfig, config_keys

_PACKAGES = ("grpo-tui", "mlx", "mlx-lm")
# The data are known by their contents, and a run may be made longer.
_OF_NO_STEP = ("model_name", "data", "eval_data", "reward_timeout", "num_epochs", "max_steps")
_BLAS = re.compile(r"/(lib(?:openblas|mkl_rt|blis)[^/\s]*)$", re.MULTILINE)


class RunConditions(msgspec.Struct, frozen=True, rename="camel"):
    """Under which the steps before a checkpoint were taken."""

    versions: dict[str, str]
    device: str
    blas: str
    threads: str
    settings: dict[str, Any]
    """Those that decide what a step trains on and what it does."""


def conditions_of(config: GRPOConfig) -> RunConditions:
    """The conditions of this process under `config`."""
    return RunConditions(
        versions={name: _version(name) for name in _PACKAGES},
        device=str(mx.default_device()),
        blas=_blas(),
        threads=_threads(),
        settings={name: getattr(config, name) for name in [*_settings(), *_length(config)]},
    )


def _length(config: GRPOConfig) -> tuple[str, ...]:
    """What decides how long a run is, where its learning rate depends on that."""
    return () if config.lr_schedule == "constant" else ("num_epochs", "max_steps")


@cache
def _settings() -> list[str]:
    return [
        key.name for key in config_keys() if key.group != "Output" and key.name not in _OF_NO_STEP
    ]


def differences(before: RunConditions, now: RunConditions) -> list[str]:
    """What is not as it was, each as `name old → new`."""
    then, today = dict(_flat(before)), dict(_flat(now))
    return [
        f"{name} {then[name]} → {value}"
        for name, value in today.items()
        if name in then and then[name] != value
    ]


def _flat(conditions: RunConditions) -> Iterator[tuple[str, Any]]:
    yield from conditions.versions.items()
    yield from (
        ("device", conditions.device),
        ("BLAS", conditions.blas),
        ("threads", conditions.threads),
    )
    yield from conditions.settings.items()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def _blas() -> str:
    """The library whose symbols mlx found; it may have been loaded before we were asked to."""
    if sys.platform != "linux":
        return "system"
    try:
        found = _BLAS.search(Path("/proc/self/maps").read_text(errors="replace"))
    except OSError:
        return "unknown"
    return found[1] if found else "that of mlx"


def _threads() -> str:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if value := os.environ.get(name):
            return value
    return str(os.cpu_count() or "unknown")
