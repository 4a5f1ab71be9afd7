"""Runs made as a program makes them, in the test's own process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_protocol import Event, GRPOConfig
from grpo_protocol.messages import Log
from grpo_trainer.trainer import GRPOTrainer
from tiny_model import tiny_model

ROWS = [{"prompt": f"{n} + {n} =", "answer": str(2 * n)} for n in range(6)]


def letters(completions: list[str], **_: Any) -> list[float]:
    return [sum(char.isalpha() for char in text) / 10 for text in completions]


class Library:
    """A trainer made as a program makes it, with everything that it says."""

    def __init__(self, folder: Path, reward: Any = letters, **settings: Any) -> None:
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
        self.trainer = GRPOTrainer.create(config, reward_functions=[reward])
        self.events: list[Event] = []
        self.trainer._reporter.listen(self.events.append)

    def train(self, rows: Sequence[dict[str, Any]] = ROWS, held_out: Any = None) -> Any:
        with self.trainer:
            return self.trainer.train(rows, held_out)

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def logs(self, level: str) -> list[str]:
        return [event.message for event in self.all(Log) if event.level == level]
