"""Gradient checkpointing: layers that keep their input and compute the rest once more.

`mx.checkpoint` passes gradients to its arguments alone, so everything in a layer's call that could
have one is made an argument: the trainable weights, and every float array among the inputs.
Integers, which it refuses, masks and other objects are closed over.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path

from grpo_trainer.errors import ModelError
from grpo_trainer.gradient_probe import short_gradients
from grpo_trainer.randomness import random_position
from grpo_trainer.replaced_method import replace_method
from grpo_trainer.trees import ParameterTree, leaves, number

_TOLERANCE = 1e-2


@contextmanager
def checkpointed_layers(model: Any, *, wanted: bool = True) -> Iterator[None]:
    """Inside the block the layers of `model` are checkpointed, if that is `wanted`."""
    layers = list(getattr(model, "layers", None) or []) if wanted else []
    undo = [replace_method(layer, "__call__", _checkpointed(type(layer))) for layer in layers]
    try:
        yield
    finally:
        for undo_layer in undo:
            undo_layer()


def expect_equal_gradients(model: Any) -> None:
    """Compares a gradient with and without checkpoints; raises `ModelError` when they differ.

    A layer that passes something to another behind the back of its arguments would lose it.
    """
    plain = short_gradients(model)
    with checkpointed_layers(model):
        checkpointed = short_gradients(model)
    for name, slope in plain.items():
        scale = number(mx.abs(slope).max())
        difference = number(mx.abs(slope - checkpointed[name]).max())
        if not difference <= _TOLERANCE * max(scale, 1e-6):
            raise ModelError(
                f"gradient_checkpointing=True: gives this model another gradient of {name}; leave "
                "it out, and use forward_chunk_size=1 to save memory"
            )


def _checkpointed(kind: type) -> Callable[..., Any]:
    """The call of a layer of that `kind`, checkpointed."""

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        weights = layer.trainable_parameters()
        inputs = [list(args), kwargs]
        arrays = {name: value for name, value in leaves(inputs) if _may_have_gradient(value)}
        seed = random_position()

        def compute(weights: ParameterTree, arrays: dict[str, mx.array]) -> Any:
            mx.random.seed(seed)  # dropout has to drop the same when this is computed once more
            layer.update(weights)
            args, kwargs = tree_map_with_path(lambda name, value: arrays.get(name, value), inputs)
            return kind.__call__(layer, *args, **kwargs)

        result = mx.checkpoint(compute)(weights, arrays)
        layer.update(weights)
        return result

    return call


def _may_have_gradient(value: Any) -> bool:
    return isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
