"""Learners over tiny policies, and the rows that tests let them learn from."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from grpo_protocol import GRPOConfig
from grpo_trainer.learner import Learner, TrainingRow
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.trees import leaves
from tiny_model import Kind, tiny_model

EOS = 258


def config_of(folder: Path | None = None, **settings: Any) -> GRPOConfig:
    """Settings for the tiny model."""
    return GRPOConfig(model=str(folder or tiny_model()), **settings)


def make_learner(kind: Kind = "qwen3", **settings: Any) -> Learner:
    """A learner over a newly loaded tiny model, whose file has the `dtype` asked for."""
    config = config_of(tiny_model(kind, settings.get("dtype", "float32")), **settings)
    return Learner(load_policy(config, lambda message: None), config)


class ByPosition(nn.Module):  # type: ignore[misc, name-defined]
    """A model whose logits depend on the position alone: each has weights of its own."""

    def __init__(self, positions: int = 8, vocabulary: int = 32) -> None:
        super().__init__()
        self.table = 0.01 * mx.random.normal((positions, vocabulary), key=mx.random.key(0))

    def __call__(self, ids: mx.array) -> mx.array:
        batch, length = ids.shape
        return mx.broadcast_to(self.table[:length], (batch, length, self.table.shape[1]))


def learner_by_position(config: GRPOConfig, vocabulary: int = 32) -> Learner:
    """A learner over `ByPosition`."""
    model = ByPosition(vocabulary=vocabulary)
    policy = Policy(model, None, "full", None, dict(model.trainable_parameters()))  # type: ignore[arg-type]
    return Learner(policy, config)


def make_rows() -> list[TrainingRow]:
    """Eight rows of two groups, with prompts and completions of unlike lengths."""
    advantages = [1.0, -0.5, 0.75, -1.25, 0.5, -1.0, 1.5, -1.0]
    return [
        TrainingRow(
            prompt_ids=[(5 * row + 11 * place) % 256 for place in range(2 + 3 * (row // 4))],
            completion_ids=[(17 * row + 29 * place) % 256 for place in range(row)] + [EOS],
            advantage=advantage,
        )
        for row, advantage in enumerate(advantages)
    ]


def copy_of(tree: Any) -> dict[str, mx.array]:
    """The arrays of a tree as they are now, by name."""
    copied = dict(leaves(tree_map(lambda array: mx.array(array), tree)))
    mx.eval(copied)
    return copied


def largest_difference(first: dict[str, mx.array], second: dict[str, mx.array]) -> float:
    """Between any two elements of the same name and place."""
    assert first.keys() == second.keys()
    return max(
        float(mx.abs(first[name].astype(mx.float32) - second[name].astype(mx.float32)).max().item())  # type: ignore[arg-type]
        for name in first
    )


def are_identical(first: dict[str, mx.array], second: dict[str, mx.array]) -> bool:
    """Bit for bit."""
    return first.keys() == second.keys() and all(
        bool(mx.array_equal(first[name], second[name]).item()) for name in first
    )
