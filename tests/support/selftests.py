"""Self-tests run in the test's own process, and what they printed."""

import re
from pathlib import Path
from typing import Any

import pytest

from grpo_trainer.cli import main
from tiny_model import tiny_model

BATCH, ROLLOUT = "batch = one row at a time", "rollout = training log-probs"
RISE, MEMORY = "objective rises", "memory settings change nothing"
FINITE, RATIO = "loss and gradient are finite", "first ratio is 1"
GRADIENT, MOVE = "gradient in every tensor", "every weight moves"
FROZEN = "frozen weights stay"
LINES = [BATCH, ROLLOUT, RISE, MEMORY, FINITE, RATIO, GRADIENT, MOVE, FROZEN]
_LINE = re.compile(r"(.*?) +(ok|warning|FAILED) +(.*)")


class Report:
    """What a self-test printed, by line, and its exit code."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        lines = [match for line in text.splitlines() if (match := _LINE.fullmatch(line))]
        assert [line[1] for line in lines] == LINES, text
        self.verdicts = {line[1]: line[2] for line in lines}
        self.found = {line[1]: line[3] for line in lines}

    @property
    def failed(self) -> set[str]:
        return {name for name, verdict in self.verdicts.items() if verdict == "FAILED"}


def selftest(
    capsys: pytest.CaptureFixture[str], folder: Path | None = None, **settings: Any
) -> Report:
    """The report on the model in `folder`, or on the tiny one."""
    words = [f"{key}={value}" for key, value in settings.items()]
    capsys.readouterr()
    code = main(["selftest", "--model", str(folder or tiny_model()), *words])
    return Report(code, capsys.readouterr().out)


def expect_all_ok(report: Report) -> None:
    """Fails unless every line is, without a warning."""
    assert set(report.verdicts.values()) == {"ok"}, report.text
    assert report.code == 0
    assert report.text.splitlines()[-1] == f"all {len(LINES)} checks passed"
