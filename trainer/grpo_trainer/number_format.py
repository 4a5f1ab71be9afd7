"""In which numbers a model computes, as far as that limits how exact anything about it can be."""

import os
from typing import Any, Literal

import mlx.core as mx

from grpo_trainer.machine_memory import gpu_memory
from grpo_trainer.trees import leaves

NumberFormat = Literal["float32", "tf32", "float16", "bfloat16"]
"""tf32 is float32 whose products have 11 significant bits."""


def coarsest_format(model: Any) -> NumberFormat:
    """Of the weights of `model` and of the products on the device at hand.

    GPUs multiply float32 as tf32 unless the environment has MLX_ENABLE_TF32=0: log-probs of the
    same token from passes of other shapes then differ in the third digit.
    """
    kinds = {value.dtype for _, value in leaves(model.parameters())}
    if mx.bfloat16 in kinds:
        return "bfloat16"
    if mx.float16 in kinds:
        return "float16"
    is_exact = gpu_memory() is None or os.environ.get("MLX_ENABLE_TF32") == "0"
    return "float32" if is_exact else "tf32"
