"""Log-probs of given tokens under a model, all positions at once.

Shapes: B rows, T target positions, V vocabulary.
"""

from typing import Any

import mlx.core as mx

from grpo_trainer.distribution import Distribution, history_windows
from grpo_trainer.training_rows import RowTensors


def score_tokens(
    model: Any, batch: RowTensors, distribution: Distribution, *, entropy_gradient: bool = False
) -> tuple[mx.array, mx.array]:
    """Log-probs [B, T] of the targets under `distribution`, and its entropy [B, T] in nats.

    Both in float32. Gradients reach the entropy only with `entropy_gradient`.
    """
    raw_B_T_V = model(batch.inputs_B_T)
    history = None
    if distribution.history_size:
        history = history_windows(batch.inputs_B_T, distribution.history_size)
    logits_B_T_V = distribution.logits(raw_B_T_V, history, batch.targets_B_T)
    normalizer = mx.logsumexp(logits_B_T_V, axis=-1)
    chosen = mx.take_along_axis(logits_B_T_V, batch.targets_B_T[..., None], axis=-1)[..., 0]
    if not entropy_gradient:
        logits_B_T_V, total = mx.stop_gradient(logits_B_T_V), mx.stop_gradient(normalizer)
    else:
        total = normalizer
    # A token that a filter ruled out has probability 0 and counts for nothing.
    probabilities = mx.softmax(logits_B_T_V, axis=-1)
    finite = mx.where(probabilities > 0, logits_B_T_V, 0.0)
    return chosen - normalizer, total - (probabilities * finite).sum(axis=-1)
