"""Nested dicts and lists of arrays, as mlx keeps weights, gradients and optimizer state."""

from typing import Any, TypeAlias, cast

import mlx.core as mx
from mlx.utils import tree_flatten

ParameterTree: TypeAlias = dict[str, Any]
"""Arrays by the names of a model's modules and parameters: its weights, or their gradients."""


def leaves(tree: Any) -> list[tuple[str, mx.array]]:
    """Every array of `tree` with its dotted name."""
    return cast("list[tuple[str, mx.array]]", tree_flatten(tree))


def number(array: mx.array) -> float:
    """The one number in `array`, evaluated."""
    return float(cast("float", array.item()))
