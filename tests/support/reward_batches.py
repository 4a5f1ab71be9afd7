"""Batches for tests of reward functions and scorers."""

from collections.abc import Sequence
from typing import Any

from grpo_trainer.rewards.batch import RewardBatch


def text_batch(completions: Sequence[str], step: int = 1, **columns: list[Any]) -> RewardBatch:
    """A batch whose prompts are plain texts."""
    return RewardBatch(
        prompts=[f"prompt {row}" for row in range(len(completions))],
        completions=list(completions),
        completion_ids=[[row, row + 1] for row in range(len(completions))],
        columns=columns,
        step=step,
        finish_reasons=["stop"] * len(completions),
    )


def chat_batch(completions: Sequence[str], step: int = 1, **columns: list[Any]) -> RewardBatch:
    """A batch whose prompts are lists of one user message."""
    return RewardBatch(
        prompts=[[{"role": "user", "content": f"prompt {row}"}] for row in range(len(completions))],
        completions=list(completions),
        completion_ids=[[row, row + 1] for row in range(len(completions))],
        columns=columns,
        step=step,
        finish_reasons=["stop"] * len(completions),
    )
