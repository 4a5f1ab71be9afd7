"""Reward functions: the one way to them, from what people write to a scorer ready to score."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from grpo_protocol.config_input import ConfigError
from grpo_trainer.rewards.callables import CallableScorer
from grpo_trainer.rewards.file_scorer import FileScorer
from grpo_trainer.rewards.types import OutputCallback, OutputStream, Scorer

RewardSource: TypeAlias = str | Callable[..., Any]
"""`FILE.py` for all reward functions in it, `FILE.py:NAME` for one, or the function itself."""


def load_scorer(
    rewards: RewardSource | Sequence[RewardSource],
    weights: Sequence[float] | None = None,
    timeout: float = 60.0,
    on_output: OutputCallback | None = None,
) -> Scorer:
    """A scorer for files or for functions. Raises `ConfigError` when any of them cannot be used.

    `timeout` is in seconds for all functions in one step, 0 for no limit. `on_output` gets what
    functions from files print, line by line, from another thread; without it that goes to stderr.
    """
    sources = [rewards] if isinstance(rewards, str) or callable(rewards) else list(rewards)
    if not sources:
        raise ConfigError("reward: none is given; add --reward FILE.py or FILE.py:NAME")
    specs = [source for source in sources if isinstance(source, str)]
    functions = [source for source in sources if not isinstance(source, str)]
    for function in functions:
        if not callable(function) or isinstance(function, type):
            raise ConfigError(
                f"reward={function!r}: is no function; give a function or FILE.py:NAME"
            )
    if specs and functions:
        raise ConfigError(
            f"reward={specs[0]!r}: files and functions cannot be mixed; import the file and give "
            "its functions"
        )
    output = on_output or _to_stderr
    if specs:
        return FileScorer(specs, weights, timeout, output)
    return CallableScorer(functions, weights, timeout, output)


def _to_stderr(stream: OutputStream, line: str) -> None:
    print(line, file=sys.stderr)
