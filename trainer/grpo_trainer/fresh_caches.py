"""Lets a model make itself a cache where it is called without one.

Some architectures share keys and values between layers through the cache, and quietly compute
something else when there is none. With a fresh cache one forward pass over whole rows gives what
decoding sees, and gradients flow through the cache like through any other array.
"""

import inspect
from collections.abc import Callable
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from grpo_trainer.split_forward import backbones


def make_fresh_caches(model: Any) -> Callable[[], None]:
    """From now on `model` and its backbone read rows through a cache; returns what undoes that.

    The class of the backbone is replaced by one of its own. Names and values of the weights stay as
    they are. Without a backbone that takes a cache nothing changes.
    """
    for backbone in backbones(model):
        kind = type(backbone)
        signature = inspect.signature(kind.__call__)
        if "cache" in signature.parameters:
            backbone.__class__ = _with_fresh_caches(kind, signature, model)
            return lambda: setattr(backbone, "__class__", kind)
    return lambda: None


def _with_fresh_caches(kind: type, signature: inspect.Signature, model: Any) -> type:
    def call(backbone: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(backbone, *args, **kwargs)
        if given.arguments.get("cache") is None:
            given.arguments["cache"] = make_prompt_cache(model)
        return kind.__call__(*given.args, **given.kwargs)

    return type(kind.__name__, (kind,), {"__call__": call})
