"""Clips the accumulated gradient of a step."""

import mlx.core as mx
from mlx.utils import tree_map

from grpo_trainer.trees import ParameterTree, leaves


def clip_gradients(
    gradients: ParameterTree, max_norm: float | None, max_value: float | None
) -> tuple[ParameterTree, mx.array]:
    """Gradients clipped by element, then as a whole by L2 norm; with the norm before clipping."""
    norm = tree_norm(gradients)
    current = norm
    if max_value is not None:
        gradients = tree_map(lambda g: mx.clip(g, -max_value, max_value), gradients)
        current = tree_norm(gradients)
    if max_norm is None:
        return gradients, norm
    factor = mx.minimum(1.0, max_norm / (current + 1e-6))
    return tree_map(lambda g: g * factor, gradients), norm


def tree_norm(tree: ParameterTree) -> mx.array:
    """L2 norm over all arrays of `tree`, a scalar."""
    squares = (array.square().sum() for _, array in leaves(tree))
    return mx.sqrt(sum(squares, mx.array(0.0)))
