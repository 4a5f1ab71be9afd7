"""Log-probs and entropies of given tokens. Shapes: B rows, T target positions, V vocabulary."""

from typing import Any

import mlx.core as mx

from grpo_trainer.distribution import Distribution
from grpo_trainer.training_rows import RowTensors


def score_logits(
    logits: mx.array, targets: mx.array, *, entropy_gradient: bool = False
) -> tuple[mx.array, mx.array]:
    """Log-probs [...] of `targets` [...] under logits [..., V], and the entropy [...] in nats.

    Both in float32. Gradients reach the entropy only with `entropy_gradient`.
    """
    normalizer = mx.logsumexp(logits, axis=-1)
    chosen = mx.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    total = normalizer
    if not entropy_gradient:
        logits, total = mx.stop_gradient(logits), mx.stop_gradient(normalizer)
    probabilities = mx.softmax(logits, axis=-1)
    # A model may mask tokens with -inf itself, and 0 times that is no number.
    expected = (probabilities * mx.where(probabilities > 0, logits, 0.0)).sum(axis=-1)
    return chosen - normalizer, total - expected


def score_tokens(
    model: Any, batch: RowTensors, distribution: Distribution, *, entropy_gradient: bool = False
) -> tuple[mx.array, mx.array]:
    """Log-probs [B, T] of all targets under `distribution`, and its entropy [B, T] in nats.

    Prompt and padding are scored too. See `score_logits`.
    """
    raw_B_T_V = model(batch.inputs_B_T)
    history = distribution.histories(batch.inputs_B_T)
    logits_B_T_V = distribution.logits(raw_B_T_V, history, batch.targets_B_T)
    return score_logits(logits_B_T_V, batch.targets_B_T, entropy_gradient=entropy_gradient)
