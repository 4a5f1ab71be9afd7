"""What reward functions give back: scores or an error, and the interface of all scorers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from grpo_trainer.dataset import Example
from grpo_trainer.errors import TrainerError
from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.calling import Score, one_line

OutputStream: TypeAlias = Literal["stdout", "stderr", "notice"]
OutputCallback: TypeAlias = Callable[[OutputStream, str], None]
"""Takes a line that a reward function printed, or a notice of ours. Any thread may call it."""


@dataclass(frozen=True)
class RewardScores:
    """What every function gave to every row, and the weighted sum."""

    names: list[str]
    per_function: dict[str, list[Score]]
    """Before weights."""
    total: list[Score]
    """None where every function abstained: that is no reward, and not reward 0."""


class RewardError(TrainerError):
    """A reward function failed. Its text is one line; `detail` is a traceback for the log."""

    def __init__(
        self,
        message: str,
        *,
        function: str | None,
        step: int,
        row: int | None = None,
        detail: str = "",
    ) -> None:
        self.function = function
        self.step = step
        self.row = row
        self.message = one_line(message)
        self.detail = detail
        who = f"reward function `{function}`" if function else "rewards"
        where = f"step {step}" if row is None else f"step {step}, row {row}"
        super().__init__(f"{who}, {where}: {self.message}")


class Scorer(Protocol):
    """Scores batches with a fixed list of functions."""

    @property
    def names(self) -> list[str]:
        """Names of the functions in order, each once."""
        ...

    @property
    def weights(self) -> list[float]:
        """What the score of each function is multiplied by in the sum."""
        ...

    def check(self, examples: Sequence[Example]) -> None:
        """Raises `ConfigError` when a function cannot be called with the columns of `examples`."""
        ...

    def score(self, batch: RewardBatch) -> RewardScores:
        """Calls each function once with the whole batch. Raises `RewardError`."""
        ...

    def close(self) -> None:
        """Frees what the functions hold; may be called twice."""
        ...


def combine(per_function: Mapping[str, list[Score]], weights: Sequence[float]) -> RewardScores:
    """Sums w·r of each row over the functions that did not abstain."""
    rows = zip(*per_function.values(), strict=True)
    return RewardScores(
        names=list(per_function),
        per_function=dict(per_function),
        total=[_weighted_sum(row, weights) for row in rows],
    )


def _weighted_sum(row: Sequence[Score], weights: Sequence[float]) -> Score:
    pairs = zip(weights, row, strict=True)
    given = [weight * score for weight, score in pairs if score is not None]
    return sum(given) if given else None
