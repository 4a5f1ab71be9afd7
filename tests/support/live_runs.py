"""Runs of a real trainer that go on until they are told to stop, and what it answers."""

import json
from pathlib import Path
from typing import Any

from grpo_protocol.messages import Applied
from trainers import StartTrainer, TrainerProcess, training_words

ENDLESS = 100_000
GATED_REWARD = """
import pathlib, time
here = pathlib.Path(__file__).parent

def letters(completions, **_):
    while not (here / "go").exists():
        time.sleep(0.005)
    return [sum(char.isalpha() for char in text) / 10 for text in completions]
"""
"""Waits in its first step until a file `go` lies beside it."""


def start_endless(
    start_trainer: StartTrainer, folder: Path, model: Path, /, **settings: Any
) -> TrainerProcess:
    """A run in one long epoch, which neither saves nor evaluates of its own accord."""
    rows = (json.dumps({"prompt": f"{n} + {n}"}) + "\n" for n in range(400))
    (folder / "data.jsonl").write_text("".join(rows))
    settings = {"max_steps": ENDLESS, "save_interval": 0, "eval_interval": 0, **settings}
    return start_trainer([*training_words(folder, model, **settings), "--events"])


def stop(trainer: TrainerProcess) -> None:
    """Asks for it, and waits for the exit code 0."""
    trainer.send("STOP")
    assert trainer.wait() == 0, str(trainer)


def applied(trainer: TrainerProcess, line: int) -> Applied:
    """What the trainer did about an input line."""
    return trainer.wait_for(Applied, lambda event: event.line == line)


def position(trainer: TrainerProcess, event: object) -> int:
    """Place of a very event among all of them."""
    return next(n for n, each in enumerate(trainer.events()) if each is event)
