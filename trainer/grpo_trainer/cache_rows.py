"""Takes rows out of the caches of a model, or repeats them, whatever kind the caches are of.

A batch cache, as mlx-lm merges it from single ones, knows a position for each row and does so
itself. A plain one counts tokens for all of its rows alike, and otherwise holds arrays with a row
for each.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map


def keep_rows_of_batch(cache: Sequence[Any], rows: mx.array) -> None:
    """Leaves `rows`, in that order, in every layer of a batch cache."""
    for layer in cache:
        layer.filter(rows)


def keep_rows_of_plain(cache: Sequence[Any], rows: mx.array) -> None:
    """Leaves `rows`, in that order, in every layer of a plain cache.

    Arrays are looked for in the attributes, not in `state`, which not every kind lets one set.
    """

    def kept(value: Any) -> Any:
        if isinstance(value, mx.array):
            return value[rows] if value.ndim else value
        if hasattr(value, "state"):  # a cache of several
            keep_rows_of_plain([value], rows)
        return value

    for layer in cache:
        for name, value in list(vars(layer).items()):
            setattr(layer, name, tree_map(kept, value))
