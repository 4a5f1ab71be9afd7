"""Which weights of a model can be trained as they are, and which models have none."""

from typing import Any

import mlx.core as mx

from grpo_trainer.errors import ModelError
from grpo_trainer.trees import leaves

_ROUTER_BIASES = ["e_score_correction_bias", "expert_bias", "router_bias"]
"""Decide which experts are chosen and are no factor of any output: they never have a gradient, and
weight decay would move them all the same."""


def refuse_quantized(config: dict[str, Any], name: str) -> None:
    """Raises `ModelError` when the config.json of the model `name` says that it is quantized."""
    nested = [block for block in config.values() if isinstance(block, dict)]
    for block in (config, *nested):
        for key in ("quantization", "quantization_config"):
            if block.get(key):
                raise ModelError(_refusal(name, f"config.json has {key}"))


def unfreeze(model: Any, name: str) -> tuple[str, ...]:
    """Makes the weights of `model` trainable; lines about those that are not.

    Raises `ModelError` when it is quantized.
    """
    for path, module in model.named_modules():
        if hasattr(module, "bits"):
            raise ModelError(_refusal(name, f"{path} is quantized"))
    for path, weight in leaves(model.parameters()):
        if not mx.issubdtype(weight.dtype, mx.floating):
            kind = str(weight.dtype).removeprefix("mlx.core.")
            raise ModelError(_refusal(name, f"{path} is of type {kind}"))
    model.unfreeze()
    model.freeze(keys=_ROUTER_BIASES, strict=False)
    altered = _altered_by_loading(model)
    modules = dict(model.named_modules())
    for path in altered:
        module, _, parameter = path.rpartition(".")
        modules[module].freeze(keys=[parameter], recurse=False)
    reason = "mlx-lm would load it as something else than what was trained"
    return tuple(f"fine_tune_type=full: {path} stays as it is ({reason})" for path in altered)


def _altered_by_loading(model: Any) -> list[str]:
    """Weights that mlx-lm changes whenever it reads them, such as a head that it normalizes."""
    if not hasattr(model, "sanitize"):
        return []
    # Other values than those loaded, which may be such that a change does not show. They are lazy:
    # only what comes back as another array is computed.
    weights = {path: 1.01 * weight for path, weight in leaves(model.parameters())}
    found = model.sanitize(dict(weights))
    return [
        path
        for path, weight in weights.items()
        if path in found and found[path] is not weight and not _is_same(found[path], weight)
    ]


def _is_same(first: mx.array, second: mx.array) -> bool:
    return first.shape == second.shape and bool(mx.array_equal(first, second).item())


def _refusal(name: str, evidence: str) -> str:
    return (
        f"fine_tune_type=full: model={name!r} is quantized ({evidence}), and quantized weights "
        "cannot be trained; use fine_tune_type=lora or dora, or name an unquantized model"
    )
