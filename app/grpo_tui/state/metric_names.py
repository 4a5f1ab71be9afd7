"""Under which name each number of a step is charted.

Names that several files know are constants here; every other name of a step's `metrics` map is
charted under itself.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from grpo_protocol.messages import MetricsHistoryItem, Step

REWARD: Final = "reward"
REWARD_STD: Final = "reward_std"
LOSS: Final = "loss"
ADVANTAGE_STD: Final = "adv_std"
ZERO_STD: Final = "frac_reward_zero_std"
LENGTH: Final = "completions/mean_length"
TRUNCATED: Final = "completions/clipped_ratio"
KL: Final = "kl"
ENTROPY: Final = "entropy"
GRAD_NORM: Final = "grad_norm"
LEARNING_RATE: Final = "lr"
TOKENS_PER_SECOND: Final = "tok_s"
PEAK_MEMORY: Final = "peak_memory_mb"
ACTIVE_MEMORY: Final = "active_memory_mb"
STEP_TIME: Final = "step_time"
GENERATION_TIME: Final = "gen_time"
REWARD_TIME: Final = "reward_time"
TRAINING_TIME: Final = "train_time"
PERPLEXITY: Final = "perplexity"
TOKEN_ACCURACY: Final = "token_accuracy"
MEAN_ADVANTAGE: Final = "adv_mean"

_SAME_AS: Final = {
    "learning_rate": LEARNING_RATE,
    "gradient_norm": GRAD_NORM,
    "advantages/mean": MEAN_ADVANTAGE,
}
"""Names in `metrics` for what has a field of its own."""


def step_values(step: Step) -> dict[str, float | None]:
    """Every number that a step tells, by chart name, durations in seconds. None: not finite.

    Left out are optional fields that are None, see `unknown_fields`.
    """
    values = {_SAME_AS.get(name, name): value for name, value in step.metrics.items()}
    values |= {
        LOSS: step.loss,
        **{name: value for name, value in _fields(step) if value is not None},
    }
    _derive(values, step.total_tokens)
    return values


def unknown_fields(step: Step) -> list[str]:
    """Chart names of the optional fields that are None: not told, or not finite."""
    told = {_SAME_AS.get(name, name) for name in step.metrics}
    return [name for name, value in _fields(step) if value is None and name not in told]


def history_values(item: MetricsHistoryItem) -> dict[str, float | None]:
    """The numbers of an earlier step as a `resume_state` tells them."""
    values: dict[str, float | None] = {LOSS: item.loss}
    for name, value, factor in (
        (REWARD, item.mean_reward, 1.0),
        (ADVANTAGE_STD, item.std_advantage, 1.0),
        (PERPLEXITY, item.perplexity, 1.0),
        (TOKEN_ACCURACY, item.token_accuracy, 1.0),
        (GENERATION_TIME, item.generation_time_ms, 0.001),
        (TRAINING_TIME, item.training_time_ms, 0.001),
    ):
        if value is not None:
            values[name] = value * factor
    return values


_COLUMNS: Final[Mapping[str, tuple[str, float]]] = {
    "loss": (LOSS, 1.0),
    "mean_reward": (REWARD, 1.0),
    "std_reward": (REWARD_STD, 1.0),
    "mean_advantage": (MEAN_ADVANTAGE, 1.0),
    "std_advantage": (ADVANTAGE_STD, 1.0),
    "generation_time_ms": (GENERATION_TIME, 0.001),
    "reward_time_ms": (REWARD_TIME, 0.001),
    "training_time_ms": (TRAINING_TIME, 0.001),
    "gradient_norm": (GRAD_NORM, 1.0),
    "learning_rate": (LEARNING_RATE, 1.0),
    "peak_memory_mb": (PEAK_MEMORY, 1.0),
    "active_memory_mb": (ACTIVE_MEMORY, 1.0),
}


def stored_values(
    columns: Mapping[str, float | None], total_tokens: int
) -> dict[str, float | None]:
    """The same for columns of `training_steps`, with its `metrics` map already merged in."""
    values: dict[str, float | None] = {}
    for column, value in columns.items():
        name, factor = _COLUMNS.get(column, (_SAME_AS.get(column, column), 1.0))
        if value is not None or name in {LOSS, REWARD}:
            values[name] = None if value is None else value * factor
    _derive(values, total_tokens)
    return values


def _derive(values: dict[str, float | None], total_tokens: int) -> None:
    """Adds what follows from the durations."""
    told = (values.get(name) for name in (GENERATION_TIME, REWARD_TIME, TRAINING_TIME))
    if parts := [seconds for seconds in told if seconds is not None]:
        values.setdefault(STEP_TIME, sum(parts))
    if seconds := values.get(GENERATION_TIME):
        values[TOKENS_PER_SECOND] = total_tokens / seconds


def _fields(step: Step) -> Iterator[tuple[str, float | None]]:
    yield REWARD, step.mean_reward
    yield REWARD_STD, step.std_reward
    yield MEAN_ADVANTAGE, step.mean_advantage
    yield ADVANTAGE_STD, step.std_advantage
    yield PERPLEXITY, step.perplexity
    yield TOKEN_ACCURACY, step.token_accuracy
    yield GRAD_NORM, step.gradient_norm
    yield LEARNING_RATE, step.learning_rate
    yield PEAK_MEMORY, step.peak_memory_mb
    yield ACTIVE_MEMORY, step.active_memory_mb
    yield GENERATION_TIME, _seconds(step.generation_time_ms)
    yield REWARD_TIME, _seconds(step.reward_time_ms)
    yield TRAINING_TIME, _seconds(step.training_time_ms)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
