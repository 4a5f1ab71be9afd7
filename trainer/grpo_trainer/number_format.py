"""In which numbers a model computes, as far as that limits how exact anything about it can be."""

from typing import Any, Literal

import mlx.core as mx

from grpo_trainer.trees import leaves

NumberFormat = Literal["float32", "tf32", "float16", "bfloat16"]
"""tf32 is float32 whose products have 11 significant bits."""


def coarsest_format(model: Any) -> NumberFormat:
    """Of the weights of `model` and of the products on the device at hand.

    CUDA and some Apple GPUs multiply float32 as tf32 unless the environment has
    MLX_ENABLE_TF32=0: log-probs of the same token from passes of other shapes then differ in the
    third digit.
    """
    kinds = {value.dtype for _, value in leaves(model.parameters())}
    if mx.bfloat16 in kinds:
        return "bfloat16"
    if mx.float16 in kinds:
        return "float16"
    return "tf32" if _multiplies_as_tf32() else "float32"


def _multiplies_as_tf32() -> bool:
    """Tried out: one more than tf32's bits can hold disappears."""
    size = 256
    factor = mx.full((size, size), 1 + 2.0**-13)
    return bool((factor @ mx.eye(size) == 1).all().item())
