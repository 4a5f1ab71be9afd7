"""Reward functions: the one way to them, from what people write to a scorer ready to score.

| module | owns |
| --- | --- |
| `batch` | what a function is given |
| `calling`, `async_runner` | how it is called and what it may return |
| `types` | scores, errors, the scorer interface, the weighted sum |
| `validation` | what must hold before a run starts |
| `callables` | functions of the running program |
| `files` | `FILE.py[:NAME]` specs and their import |
| `file_scorer`, `process` | the trainer's side of the worker process |
| `worker` | the worker's side |
| `frames` | what the two say to each other |
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from grpo_protocol.config_input import ConfigError
from grpo_trainer.rewards.batch import RawPrompt, RewardBatch, TrainerState, completion_texts
from grpo_trainer.rewards.callables import CallableScorer
from grpo_trainer.rewards.calling import Score
from grpo_trainer.rewards.file_scorer import FileScorer
from grpo_trainer.rewards.types import (
    OutputCallback,
    OutputStream,
    RewardError,
    RewardScores,
    Scorer,
    combine,
)

__all__ = [
    "CallableScorer",
    "FileScorer",
    "OutputCallback",
    "OutputStream",
    "RawPrompt",
    "RewardBatch",
    "RewardError",
    "RewardScores",
    "RewardSource",
    "Score",
    "Scorer",
    "TrainerState",
    "combine",
    "completion_texts",
    "load_scorer",
]

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
