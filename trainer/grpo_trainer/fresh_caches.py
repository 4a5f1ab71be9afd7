"""Lets a model make itself a cache where it is called without one.

Some architectures share keys and values between layers through the cache, and quietly compute
something else when there is none. With a fresh cache one forward pass over whole rows gives what
decoding sees, and gradients flow through the cache like through any other array.
"""

import inspect
from collections.abc import Callable
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from grpo_trainer.replaced_method import replace_method
from grpo_trainer.split_forward import backbones


def make_fresh_caches(model: Any) -> Callable[[], None]:
    """From now on `model` and its backbone read rows through a cache; returns what undoes that.

    Without a backbone that takes a cache nothing changes.
    """
    for backbone in backbones(model):
        kind = type(backbone)
        signature = inspect.signature(kind.__call__)
        if "cache" in signature.parameters:
            return replace_method(backbone, "__call__", _with_fresh_caches(kind, signature, model))
    return lambda: None


def _with_fresh_caches(kind: type, signature: inspect.Signature, model: Any) -> Callable[..., Any]:
    """The call of a backbone of that `kind`, with a fresh cache where none is given."""

    def call(backbone: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(backbone, *args, **kwargs)
        if given.arguments.get("cache") is None:
            given.arguments["cache"] = make_prompt_cache(model)
        return kind.__call__(*given.args, **given.kwargs)

    return call
