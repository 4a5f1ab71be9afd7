"""Rewards of the sums: the right number, and the form that makes it findable."""

import re
from typing import Any

Completions = list[list[dict[str, str]]]
"""Each a list of one assistant message, because the prompts are messages."""

FORM = re.compile(r"\s*<answer>(\d+)</answer>\s*")


def correct_sum(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """1 for the right number in the form asked for."""
    found = [FORM.fullmatch(completion[0]["content"]) for completion in completions]
    pairs = zip(found, answer, strict=True)
    return [float(match is not None and match[1] == wanted) for match, wanted in pairs]


def form(completions: Completions, **_: Any) -> list[float]:
    """1 for a number between answer tags and nothing else."""
    return [float(FORM.fullmatch(item[0]["content"]) is not None) for item in completions]
