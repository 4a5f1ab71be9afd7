"""Records runs for tests, and reads what stands in the database."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import Generation, Step
from grpo_trainer.output.recorder import Recorder
from python_process import SECONDS


@contextmanager
def recorders(default_path: Path) -> Iterator[Callable[..., Recorder]]:
    """A function that opens recorders, with arguments of `Recorder.open`; closes them all."""
    with ExitStack() as stack:

        def open_recorder(path: Path = default_path, **options: Any) -> Recorder:
            values: dict[str, Any] = {
                "run_id": None,
                "run_name": "a run",
                "model_name": "tiny",
                "model_path": "/models/tiny",
                "config": GRPOConfig(model="/models/tiny", group_size=8),
                "resume_after_step": None,
            }
            recorder = Recorder.open(path, **(values | options))
            stack.callback(recorder.close)
            return recorder

        yield open_recorder


def generation(index: int, **fields: Any) -> Generation:
    values: dict[str, Any] = {
        "prompt": "2+3=",
        "completion": f"completion {index}",
        "reward": float(index),
        "tokens": 7,
        "prompt_index": index // 2,
        "group_index": index % 2,
        "finish_reason": "stop",
    }
    return Generation(index=index, **(values | fields))


def step(number: int, **fields: Any) -> Step:
    return Step(step=number, **({"loss": 0.5, "total_tokens": 28} | fields))


def record(recorder: Recorder, number: int, **fields: Any) -> None:
    recorder.scored(number, 1, [generation(index) for index in range(4)])
    recorder.done(step(number, **fields))


def rows(path: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return db.execute(query, values).fetchall()
    finally:
        db.close()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
