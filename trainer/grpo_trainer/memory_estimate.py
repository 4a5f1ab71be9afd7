"""How much memory a run will take at its peak.

A sum of what is known exactly (weights, optimizer state) and what a formula gives (caches,
activations, logits), for the two phases of a step. It is meant to be right within a third.
"""

from dataclasses import dataclass
from typing import Any

from grpo_protocol.config import GRPOConfig
from grpo_trainer.completion_scores import LOGITS_AT_ONCE
from grpo_trainer.learner import Learner
from grpo_trainer.model_shape import ModelShape, activation_size
from grpo_trainer.row_chunks import activation_bytes
from grpo_trainer.trees import leaves

_CACHE_STEP = 256
"""Tokens by which mlx-lm lengthens a cache."""
_LOGIT_COPIES = 5
"""Arrays of the logits' size that a loss and its gradient take."""
_DRAW_COPIES = 4
"""Arrays of the logits' size that drawing a token takes, the next one's included."""


@dataclass(frozen=True)
class RunSizes:
    """What the estimate depends on besides the settings. Sizes in bytes."""

    shape: ModelShape
    weights: int
    trainable: int
    """Numbers that are trained; each takes four bytes."""
    separate_masters: bool
    optimizer_state: int
    number: int
    """Bytes of one activation: of the model's precision."""
    prompt: int
    """Tokens of the longest prompt."""
    rows: int
    """Most completions decoded at once, as the run is planned."""

    @classmethod
    def of(cls, learner: Learner, prompt: int, rows: int) -> "RunSizes | None":
        """Those of a loaded model; None when its architecture does not tell its sizes."""
        model = learner.policy.model
        shape = ModelShape.of_model(model)
        if shape is None:
            return None
        return cls(
            shape=shape,
            weights=_bytes(model.parameters()),
            trainable=learner.policy.num_trainable,
            separate_masters=learner.policy.has_separate_masters,
            optimizer_state=_bytes(learner.optimizer.state),
            number=activation_size(model),
            prompt=prompt,
            rows=rows,
        )


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak bytes of a step, by what takes them."""

    weights: int
    training_state: int
    """Masters, moments, reference."""
    rollouts: int
    """While completions are sampled."""
    training: int
    """While a gradient is computed, the gradient itself included."""

    @property
    def peak(self) -> int:
        """Rollouts and training follow each other."""
        return self.weights + self.training_state + max(self.rollouts, self.training)


def estimate_memory(sizes: RunSizes, config: GRPOConfig) -> MemoryEstimate:
    """Of a run with these settings."""
    trained = 4 * sizes.trainable
    state = sizes.optimizer_state
    state += trained if sizes.separate_masters else 0
    state += trained if config.kl_coef else 0
    return MemoryEstimate(
        weights=sizes.weights,
        training_state=state,
        rollouts=_rollout_bytes(sizes, config),
        training=max(_pass_bytes(sizes, config) + 2 * trained, 2 * trained + sizes.optimizer_state),
    )


def _rollout_bytes(sizes: RunSizes, config: GRPOConfig) -> int:
    rows = min(sizes.rows, config.generation_chunk_size or sizes.rows)
    if not config.use_parallel_batch_generation:
        rows = 1
    length = sizes.prompt + config.max_completion_length
    cached = -(-length // _CACHE_STEP) * _CACHE_STEP * sizes.shape.cached_numbers * sizes.number
    # A cache that grows or loses rows exists twice for a moment, one layer at a time.
    cache = rows * cached * (1 + 1 / sizes.shape.num_layers)
    logits = rows * sizes.shape.vocabulary * 4 * _DRAW_COPIES
    return int(cache + logits)


def _pass_bytes(sizes: RunSizes, config: GRPOConfig) -> int:
    shape, length = sizes.shape, sizes.prompt + config.max_completion_length
    row = sizes.number * shape.activations(length, checkpointed=config.gradient_checkpointing)
    fitting = max(1, activation_bytes() // max(sizes.number * shape.activations(length), 1))
    rows = min(config.batch_size * config.group_size, config.forward_chunk_size or fitting)
    logits = min(rows * config.max_completion_length * shape.vocabulary, LOGITS_AT_ONCE)
    return rows * row + 4 * _LOGIT_COPIES * logits


def _bytes(tree: Any) -> int:
    return sum(array.nbytes for _, array in leaves(tree))
