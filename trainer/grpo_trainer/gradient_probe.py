"""Takes a gradient of a model on three tokens, to see before a run whether it has one."""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from grpo_trainer.errors import MODEL_FAULTS, ModelError, first_line
from grpo_trainer.randomness import random_position
from grpo_trainer.trees import ParameterTree, leaves


def expect_gradient(model: Any, name: str) -> None:
    """Raises `ModelError` with one line when an operation of the model `name` has no gradient."""
    try:
        short_gradients(model)
    except MODEL_FAULTS as error:
        raise ModelError(
            f"model={name!r}: cannot be trained: its gradient fails: {first_line(error)}; "
            "use another model"
        ) from error


def short_gradients(model: Any) -> dict[str, mx.array]:
    """float32 gradients of the mean square of the logits by every trainable weight.

    In training mode, because some architectures compute otherwise while they are trained. The
    model and the random stream are afterwards as they were.
    """
    ids = mx.array([[1, 2, 3]])
    weights = model.trainable_parameters()
    position, was_training = random_position(), model.training

    def total(weights: ParameterTree) -> mx.array:
        model.update(weights)
        mean: mx.array = model(ids).astype(mx.float32).square().mean()
        return mean

    model.train()
    try:
        slopes = mx.grad(total)(weights)
        mx.eval(slopes)
    finally:
        model.train(was_training)
        model.update(weights)
        mx.random.seed(position)
    return dict(leaves(tree_map(lambda slope: slope.astype(mx.float32), slopes)))
