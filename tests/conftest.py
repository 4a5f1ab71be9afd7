"""What tests share: a fast BLAS before mlx, tiny models, and trainers that end with the test."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import trainers
from grpo_trainer import blas
from trainers import StartTrainer

blas.load()  # before any test imports mlx


@pytest.fixture
def start_trainer(tmp_path: Path) -> Iterator[StartTrainer]:
    """Starts trainers that are gone when the test is over."""
    started: list[trainers.TrainerProcess] = []

    def start(
        words: Sequence[str], env: Mapping[str, str] | None = None, *, fresh: bool = False
    ) -> trainers.TrainerProcess:
        run = trainers.start_fresh_trainer if fresh else trainers.start_trainer
        process = run(words, cwd=tmp_path, env=env)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture(scope="session")
def qwen3_folder() -> Path:
    """A random Qwen3 model of two layers; read it, never write into it."""
    from tiny_model import tiny_model

    return tiny_model("qwen3")


@pytest.fixture(scope="session")
def llama_folder() -> Path:
    """A random Llama model of two layers."""
    from tiny_model import tiny_model

    return tiny_model("llama")
