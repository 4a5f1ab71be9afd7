"""One optimizer step from sampled completions: log-probs, loss, gradients, clipping, AdamW.

Shapes: B rows of one micro-batch, T token positions after the first, V vocabulary. Rows are prompt
and completion padded on the right, where causal attention never looks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_map

from grpo_protocol.config import GRPOConfig
from grpo_trainer.loss import Objective, grpo_loss
from grpo_trainer.policy import Policy
from grpo_trainer.randomness import derived_seed
from grpo_trainer.trees import leaves, number

DEFAULT_LEARNING_RATES = {"lora": 1e-5, "full": 1e-6}


@dataclass(frozen=True)
class TrainingRow:
    """One completion to learn from: the very ids that were read and sampled."""

    prompt_ids: list[int]
    completion_ids: list[int]
    advantage: float


@dataclass(frozen=True)
class UpdateResult:
    """What one optimizer step did."""

    loss: float
    gradient_norm: float
    """L2 norm of the whole accumulated gradient, before clipping."""
    applied: bool
    """False when there was nothing to learn or the gradient was not finite."""
    entropy: float | None
    """Mean over completion tokens, in nats, at the sampling temperature."""
    clip_ratio_low: float
    clip_ratio_high: float


class _Tensors(NamedTuple):
    inputs_B_T: mx.array
    targets_B_T: mx.array
    mask_B_T: mx.array
    advantages_B: mx.array


class _Sums(NamedTuple):
    """Per micro-batch, summed over the step."""

    entropy: mx.array
    clipped_low: mx.array
    clipped_high: mx.array


def learning_rate_of(config: GRPOConfig) -> float:
    """The learning rate in force, with the default of the kind of fine-tuning."""
    return config.learning_rate or DEFAULT_LEARNING_RATES[config.fine_tune_type]


class Learner:
    """Moves a policy's weights. One instance owns the optimizer state of a run."""

    def __init__(self, policy: Policy, config: GRPOConfig) -> None:
        self.policy = policy
        self.optimizer = optim.AdamW(
            learning_rate=learning_rate_of(config),
            betas=[config.adamw_beta1, config.adamw_beta2],
            eps=config.adamw_eps,
            weight_decay=config.weight_decay,
            bias_correction=True,
        )
        self.optimizer.init(policy.weights)
        self.updates = 0
        """Optimizer steps applied, those before a resume included."""

    def update(
        self, micro_batches: Sequence[Sequence[TrainingRow]], config: GRPOConfig, step: int
    ) -> UpdateResult:
        """Accumulates the gradients of `micro_batches` and takes one optimizer step.

        Rows whose group had no spread count in every mean, but when no row has an advantage the
        weights stay as they are, weight decay and moments included.
        """
        rows = [row for batch in micro_batches for row in batch]
        if not any(row.advantage for row in rows):
            return UpdateResult(0.0, 0.0, False, None, 0.0, 0.0)
        tokens = sum(len(row.completion_ids) for row in rows)
        objective = _objective(config, len(rows), tokens, len(micro_batches))
        mx.random.seed(derived_seed(config.seed, "dropout", step))
        loss, gradients, sums = self._accumulate(micro_batches, objective, config.temperature)
        gradients, norm = clip_gradients(
            gradients, config.gradient_clip_norm, config.gradient_clip_value
        )
        mx.eval(loss, gradients, norm, sums)
        applied = math.isfinite(number(norm)) and math.isfinite(number(loss))
        if applied:
            self.optimizer.learning_rate = learning_rate_of(config)
            self.policy.adopt(self.optimizer.apply_gradients(gradients, self.policy.weights))
            mx.eval(self.optimizer.state)
            self.updates += 1
        else:
            self.policy.adopt(self.policy.weights)
        return UpdateResult(
            loss=number(loss),
            gradient_norm=number(norm),
            applied=applied,
            entropy=number(sums.entropy) / tokens,
            clip_ratio_low=number(sums.clipped_low) / tokens,
            clip_ratio_high=number(sums.clipped_high) / tokens,
        )

    def is_finite(self) -> bool:
        """Whether every trained weight is a finite number."""
        return all(bool(mx.isfinite(w).all()) for _, w in leaves(self.policy.weights))

    def _accumulate(
        self,
        micro_batches: Sequence[Sequence[TrainingRow]],
        objective: Objective,
        temperature: float,
    ) -> tuple[mx.array, Any, _Sums]:
        """Sums of loss, gradients and counts over the micro-batches."""

        def share(weights: dict[str, Any], batch: _Tensors) -> tuple[mx.array, _Sums]:
            self.policy.install(weights)
            logprobs, entropy = score_tokens(self.policy.model, batch, temperature)
            old = mx.stop_gradient(logprobs)  # sampled by these very weights: the ratio is 1
            parts = grpo_loss(logprobs, old, batch.advantages_B, batch.mask_B_T, objective)
            return parts.loss, _Sums(entropy, parts.clipped_low, parts.clipped_high)

        gradient_of = mx.value_and_grad(share)
        self.policy.model.train()
        total: Any = None
        for batch in micro_batches:
            (loss, sums), gradients = gradient_of(self.policy.weights, _to_tensors(batch))
            part = (loss, gradients, sums)
            total = part if total is None else tree_map(mx.add, total, part)
            # A sum left lazy would keep the gradients of every micro-batch until the last.
            mx.eval(total)
        self.policy.model.eval()
        loss, gradients, sums = total
        return loss, gradients, _Sums(*sums)


def score_tokens(model: Any, batch: _Tensors, temperature: float) -> tuple[mx.array, mx.array]:
    """Log-probs [B, T] of the target ids at `temperature`, in float32, and the summed entropy."""
    logits = model(batch.inputs_B_T).astype(mx.float32) / temperature
    normalizer = mx.logsumexp(logits, axis=-1)
    chosen = mx.take_along_axis(logits, batch.targets_B_T[..., None], axis=-1)[..., 0]
    still = mx.stop_gradient(logits)
    probabilities = mx.softmax(still, axis=-1)
    entropy_B_T = mx.stop_gradient(normalizer) - (probabilities * still).sum(axis=-1)
    return chosen - normalizer, (entropy_B_T * batch.mask_B_T).sum()


def clip_gradients(
    gradients: Any, max_norm: float | None, max_value: float | None
) -> tuple[Any, mx.array]:
    """Gradients clipped by element, then as a whole by L2 norm; with the norm before clipping."""
    norm = mx.sqrt(sum((g.square().sum() for _, g in leaves(gradients)), mx.array(0.0)))
    if max_value is not None:
        gradients = tree_map(lambda g: mx.clip(g, -max_value, max_value), gradients)
    if max_norm is None:
        return gradients, norm
    current = norm
    if max_value is not None:
        squares = (g.square().sum() for _, g in leaves(gradients))
        current = mx.sqrt(sum(squares, mx.array(0.0)))
    factor = mx.minimum(1.0, max_norm / (current + 1e-6))
    return tree_map(lambda g: g * factor, gradients), norm


def _objective(config: GRPOConfig, rows: int, tokens: int, micro_batches: int) -> Objective:
    return Objective(
        loss_type=config.loss_type,
        epsilon_low=config.clip_epsilon,
        epsilon_high=config.clip_epsilon_high or config.clip_epsilon,
        max_completion_length=config.max_completion_length,
        total_rows=rows,
        total_tokens=tokens,
        num_micro_batches=micro_batches,
    )


def _to_tensors(rows: Sequence[TrainingRow]) -> _Tensors:
    """Right-padded ids; the mask is 1 where the target is a token of the completion."""
    length = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    ids, mask = [], []
    for row in rows:
        sequence = row.prompt_ids + row.completion_ids
        padding = length - len(sequence)
        ids.append(sequence + [0] * padding)
        prompt_targets = len(row.prompt_ids) - 1
        mask.append([0.0] * prompt_targets + [1.0] * len(row.completion_ids) + [0.0] * padding)
    ids_B_T = mx.array(ids)
    return _Tensors(
        inputs_B_T=ids_B_T[:, :-1],
        targets_B_T=ids_B_T[:, 1:],
        mask_B_T=mx.array(mask),
        advantages_B=mx.array([row.advantage for row in rows]),
    )
