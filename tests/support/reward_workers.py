"""Reward files for tests: written, loaded, watched, and closed again."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.loading import load_scorer
from grpo_trainer.rewards.types import RewardError, Scorer

Load = Callable[..., Scorer]


class Output:
    """Lines that a scorer has delivered, from whatever thread."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._news = threading.Condition()

    def __call__(self, stream: str, line: str) -> None:
        with self._news:
            self.lines.append((stream, line))
            self._news.notify_all()

    def expect(self, stream: str, part: str) -> None:
        def found() -> bool:
            return any(part in line for where, line in self.lines if where == stream)

        with self._news:
            assert self._news.wait_for(found, timeout=30), self.lines


@pytest.fixture
def output() -> Output:
    return Output()


@pytest.fixture
def load(tmp_path: Path, output: Output) -> Iterator[Load]:
    """Loads the source of a reward file, and closes the scorer after the test."""
    scorers = []

    def load_source(source: str, name: str = "", **options: Any) -> Scorer:
        path = write(tmp_path, source)
        scorer = load_scorer(f"{path}{name and ':' + name}", on_output=output, **options)
        scorers.append(scorer)
        return scorer

    yield load_source
    for scorer in scorers:
        scorer.close()


def write(folder: Path, source: str, name: str = "my_rewards.py") -> Path:
    """Writes a module, beside one that lets it leave process ids for the test."""
    (folder / "pids.py").write_text(dedent(PIDS))
    path = folder / name
    path.write_text(dedent(source))
    return path


def failure_of(scorer: Scorer, batch: RewardBatch) -> RewardError:
    with pytest.raises(RewardError) as caught:
        scorer.score(batch)
    assert "\n" not in str(caught.value)
    return caught.value


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody collects does not."""
    if sys.platform == "linux":
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
    else:
        command = ["ps", "-o", "stat=", "-p", str(pid)]
        state = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return state != "" and state[0] not in "ZX"


def read_pid(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


PIDS = """
    import os
    def write_pid(path, pid=None):
        with open(path, "w") as file:
            file.write(f"{pid or os.getpid()}\\n")
"""

EXACT = """
    def exact(completions, answer):
        return [float(text == gold) for text, gold in zip(completions, answer)]
"""
