"""Questions about the tensors of a model: which moved, which have a gradient, which are as before.

Experts are stacked, [E, ...] with one slice for each; an expert that got no token has no gradient.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import mlx.core as mx
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.tuner.lora import LoRASwitchLinear

from grpo_trainer.trees import ParameterTree, leaves

_EXPERTS = (SwitchLinear, QuantizedSwitchLinear, LoRASwitchLinear)
_UNSIGNED = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


class IdleExperts(NamedTuple):
    """The experts of one block whose slices have no gradient, and how many it has in all."""

    block: str
    idle: list[int]
    number: int


def reached_by(gradients: ParameterTree) -> dict[str, bool]:
    """Whether any element of each tensor has a gradient."""
    return {name: is_any(slope != 0) for name, slope in leaves(gradients)}


def moved_between(before: ParameterTree, after: ParameterTree) -> dict[str, bool]:
    """Whether any element of each tensor has changed."""
    old = dict(leaves(before))
    return {name: is_any(new != old[name]) for name, new in leaves(after)}


def without_gradient_yet(weights: ParameterTree) -> set[str]:
    """Names of the `lora_a` whose `lora_b` is 0: the gradient is a product with it, so 0 too."""
    named = dict(leaves(weights))
    pairs = [
        (name, f"{name.removesuffix('a')}b")
        for name in named
        if name.rpartition(".")[2] == "lora_a"
    ]
    return {a for a, b in pairs if not is_any(named[b] != 0)}


def idle_experts(model: Any, gradients: Mapping[str, mx.array]) -> list[IdleExperts]:
    """For each block with experts those without gradient, where there are any.

    A block without any gradient at all is left out: that is a fault of another kind.
    """
    paths = {path for path, module in model.named_modules() if isinstance(module, _EXPERTS)}
    used: dict[str, list[bool]] = {}
    for name, slope in gradients.items():
        path = name.rpartition(".")[0]
        if path in paths:
            found = cast("list[bool]", (slope != 0).any(axis=list(range(1, slope.ndim))).tolist())
            block = path.rpartition(".")[0]
            before = used.get(block, [False] * len(found))
            used[block] = [a or b for a, b in zip(before, found, strict=True)]
    return [
        IdleExperts(
            block, [place for place, is_used in enumerate(found) if not is_used], len(found)
        )
        for block, found in used.items()
        if any(found) and not all(found)
    ]


def checksums(model: Any, left_out: ParameterTree) -> dict[str, int]:
    """Over the bits of every parameter of `model`, but for those named in `left_out`."""
    names = {name for name, _ in leaves(left_out)}
    return {
        name: _checksum(value) for name, value in leaves(model.parameters()) if name not in names
    }


def is_any(condition: mx.array) -> bool:
    """Whether any element is true."""
    return bool(condition.any().item())


def _checksum(array: mx.array) -> int:
    bits = mx.view(array.reshape(-1), _UNSIGNED[array.dtype.size])
    return cast("int", bits.astype(mx.uint64).sum().item())
