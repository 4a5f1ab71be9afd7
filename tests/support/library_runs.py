"""Runs made as a program makes them, in the test's own process."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_protocol import Event, GRPOConfig
from grpo_protocol.messages import Log
from grpo_trainer.trainer import GRPOTrainer
from grpo_trainer.training_rows import TrainingRow
from tiny_model import tiny_model
from trainers import read_log

ROWS = [{"prompt": f"{n} + {n} =", "answer": str(2 * n)} for n in range(6)]


def letters(completions: list[str], **_: Any) -> list[float]:
    return [sum(char.isalpha() for char in text) / 10 for text in completions]


def all_equal(value: float) -> Callable[..., list[float]]:
    """A reward that finds everything equally good."""

    def equal(completions: list[str], **_: Any) -> list[float]:
        return [value] * len(completions)

    return equal


@dataclass(frozen=True)
class Update:
    """What the learner was asked to learn from."""

    micro_batches: list[list[TrainingRow]]
    config: GRPOConfig
    step: int

    @property
    def rows(self) -> list[TrainingRow]:
        return [row for batch in self.micro_batches for row in batch]


class Library:
    """A trainer made as a program makes it, with everything that it says and learns from."""

    def __init__(self, folder: Path, *rewards: Any, **settings: Any) -> None:
        config = GRPOConfig(
            **{
                "model": str(tiny_model()),
                "output_dir": str(folder / "run"),
                "max_completion_length": 6,
                "group_size": 4,
                "batch_size": 2,
                "max_steps": 3,
                "log_console": False,
                **settings,
            }
        )
        self.folder = folder / "run"
        self.trainer = GRPOTrainer.create(config, reward_functions=list(rewards) or [letters])
        self.events: list[Event] = []
        self.trainer._reporter.listen(self.events.append)
        self.updates: list[Update] = []
        self._listen_to_updates()

    def train(self, rows: Sequence[dict[str, Any]] = ROWS, held_out: Any = None) -> Any:
        with self.trainer:
            return self.trainer.train(rows, held_out)

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def logs(self, level: str) -> list[str]:
        return [event.message for event in self.all(Log) if event.level == level]

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """An answer of the run's database."""
        with sqlite3.connect(self.folder / "outputs.db") as db:
            return db.execute(sql, values).fetchall()

    def records(self, event: str) -> list[dict[str, Any]]:
        """The records of one kind in the log file."""
        return [record for record in read_log(self.folder) if record["event"] == event]

    def _listen_to_updates(self) -> None:
        update = self.trainer.learner.update

        def listen(micro_batches: Any, config: GRPOConfig, step: int, **options: Any) -> Any:
            self.updates.append(Update([list(batch) for batch in micro_batches], config, step))
            return update(micro_batches, config, step, **options)

        self.trainer.learner.update = listen  # type: ignore[method-assign]
