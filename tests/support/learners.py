"""Learners over tiny policies, and the rows that tests let them learn from."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map

from grpo_protocol import GRPOConfig
from grpo_protocol.settings.loss import LossType
from grpo_trainer.distribution import Distribution
from grpo_trainer.learner import Learner
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.token_scores import score_tokens
from grpo_trainer.training_rows import MicroBatch, TrainingRow, completion_values, to_tensors
from grpo_trainer.trees import leaves
from tiny_model import Kind, tiny_model

EOS = 258
LOSS_TYPES: tuple[str, ...] = get_args(LossType)
SPLIT_INVARIANT = tuple(name for name in LOSS_TYPES if name != "bnpo")
"""Losses that do not depend on how a step is cut into micro-batches."""


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


def learner_by_position(config: GRPOConfig, vocabulary: int = 32, positions: int = 8) -> Learner:
    """A learner over `ByPosition`."""
    model = ByPosition(positions, vocabulary)
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


def off_policy_rows(learner: Learner, config: GRPOConfig, noise: float = 0.15) -> list[TrainingRow]:
    """`make_rows()` as if other weights had sampled them and a reference were far away."""
    rng = np.random.default_rng(5)

    def near(values: list[float]) -> list[float]:
        return [value + float(rng.normal(0.0, noise)) for value in values]

    rows = make_rows()
    return [
        replace(row, old_logprobs=near(lps), sampling_logprobs=near(lps), ref_logprobs=near(lps))
        for row, lps in zip(rows, logprobs_of(learner, rows, config), strict=True)
    ]


def logprobs_of(learner: Learner, rows: MicroBatch, config: GRPOConfig) -> list[list[float]]:
    """Of each token of each completion, under the learner's policy as it is now."""
    distribution = Distribution.for_training(config)
    scores, _ = score_tokens(learner.policy.model, to_tensors(rows), distribution)
    return completion_values(scores, rows)


def cut(rows: Sequence[TrainingRow], sizes: Sequence[int]) -> list[list[TrainingRow]]:
    """`rows` in micro-batches of those sizes."""
    assert sum(sizes) == len(rows)
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [list(rows[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def loss_and_gradient(
    learner: Learner, batches: Sequence[MicroBatch], config: GRPOConfig
) -> tuple[float, dict[str, mx.array]]:
    """Of a whole step, before clipping; the weights stay as they are."""
    found = learner.gradient(batches, config)
    return float(np.asarray(found.loss)), copy_of(found.gradients)


def copy_of(tree: Any) -> dict[str, mx.array]:
    """The arrays of a tree as they are now, by name."""
    copied = dict(leaves(tree_map(lambda array: mx.array(array), tree)))
    mx.eval(copied)
    return copied


def scaled(tree: dict[str, mx.array], factor: float) -> dict[str, mx.array]:
    """Every array times `factor`."""
    return {name: factor * array for name, array in tree.items()}


def largest(tree: dict[str, mx.array]) -> float:
    """The size of the largest element."""
    return largest_difference(tree, scaled(tree, 0.0))


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
