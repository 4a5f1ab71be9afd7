"""Log-probs and entropies of given tokens. Shapes: B rows, T target positions, V vocabulary."""

from typing import Any

import mlx.core as mx

from grpo_trainer.distribution import Distribution
from grpo_trainer.training_rows import RowTensors


def score_logits(
    logits: mx.array,
    targets: mx.array,
    *,
    entropy_gradient: bool = False,
    vocab_chunk_size: int | None = None,
) -> tuple[mx.array, mx.array]:
    """Log-probs [...] of `targets` [...] under logits [..., V], and the entropy [...] in nats.

    Both in float32. Gradients reach the entropy only with `entropy_gradient`. Sums over the
    vocabulary are taken over `vocab_chunk_size` entries at a time, or over all at once.
    """
    size = vocab_chunk_size or logits.shape[-1]
    chunks = list(mx.split(logits, list(range(size, logits.shape[-1], size)), axis=-1))
    normalizers = [mx.logsumexp(part, axis=-1) for part in chunks]
    normalizer = mx.logsumexp(mx.stack(normalizers, axis=-1), axis=-1)
    chosen = mx.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    total = normalizer
    if not entropy_gradient:
        chunks = [mx.stop_gradient(part) for part in chunks]
        total = mx.stop_gradient(normalizer)
    expected = mx.stack([_expected(part, total) for part in chunks], axis=-1).sum(axis=-1)
    return chosen - normalizer, total - expected


def _expected(logits: mx.array, normalizer: mx.array) -> mx.array:
    """What these logits [..., C] add to the mean of all under their distribution."""
    probabilities = mx.exp(logits - normalizer[..., None])
    # A model may mask tokens with -inf itself, and 0 times that is no number.
    return (probabilities * mx.where(probabilities > 0, logits, 0.0)).sum(axis=-1)


def score_tokens(
    model: Any,
    batch: RowTensors,
    distribution: Distribution,
    *,
    entropy_gradient: bool = False,
    vocab_chunk_size: int | None = None,
) -> tuple[mx.array, mx.array]:
    """Log-probs [B, T] of all targets under `distribution`, and its entropy [B, T] in nats.

    Prompt and padding are scored too. See `score_logits`.
    """
    raw_B_T_V = model(batch.inputs_B_T)
    history = distribution.histories(batch.inputs_B_T)
    logits_B_T_V = distribution.logits(raw_B_T_V, history, batch.targets_B_T)
    return score_logits(
        logits_B_T_V,
        batch.targets_B_T,
        entropy_gradient=entropy_gradient,
        vocab_chunk_size=vocab_chunk_size,
    )
