"""A language model as two functions: token ids to hidden states, and hidden states to logits.

Every mlx-lm model ends the same way: a backbone gives hidden states, and the model itself turns
them into logits, with its own head, scale or soft cap. The second half is had from any of them by
letting the model run on a backbone that returns given hidden states. Shapes: B rows, T tokens, N
tokens of any rows, H hidden, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from grpo_trainer.trees import leaves, number

_TOLERANCE = 1e-3


class SplitForward:
    """The two halves of one model. The weights stay where they are."""

    def __init__(self, model: Any, backbone: Any) -> None:
        self._model = model
        self._backbone = backbone
        self.vocabulary = 0
        """Logits of one token."""

    @classmethod
    def of(cls, model: Any) -> "SplitForward | None":
        """The halves of `model`; None when together they do not give what the whole gives."""
        ids = mx.array([[1, 2, 3]])
        for backbone in backbones(model):
            split = cls(model, backbone)
            try:
                whole, halves = model(ids)[0], split.logits(split.hidden(ids)[0])
                scale = max(number(mx.abs(whole).max()), 1.0)
                if number(mx.abs(whole - halves).max()) <= _TOLERANCE * scale:
                    split.vocabulary = whole.shape[-1]
                    return split
            except (TypeError, ValueError, AttributeError):
                continue
        return None

    def hidden(self, ids_B_T: mx.array) -> mx.array:
        """Hidden states [B, T, H] after the last layer and its norm."""
        states: mx.array = self._backbone(ids_B_T)
        return states

    def logits(self, hidden_N_H: mx.array) -> mx.array:
        """Logits [N, V] of hidden states at any positions."""
        states = hidden_N_H[None]
        kind = type(self._backbone)
        given = type(kind.__name__, (kind,), {"__call__": lambda *_, **__: states})
        self._backbone.__class__ = given
        try:
            logits: mx.array = self._model(mx.zeros(states.shape[:2], dtype=mx.int32))
        finally:
            self._backbone.__class__ = kind
        return logits[0]


def head_parameters(model: Any, split: SplitForward) -> frozenset[str]:
    """Names of the trainable parameters that turn hidden states into logits."""
    trainable = dict(leaves(model.trainable_parameters()))
    inside = {id(weight) for layer in model.layers for _, weight in leaves(layer.parameters())}
    outside = {name: weight for name, weight in trainable.items() if id(weight) not in inside}
    if not outside:
        return frozenset()
    states = split.hidden(mx.array([[1, 2, 3]]))[0]

    def total(weights: dict[str, mx.array]) -> mx.array:
        model.update(tree_unflatten(list(weights.items())))
        return split.logits(states).square().sum()

    slopes = mx.grad(total)(outside)
    model.update(tree_unflatten(list(outside.items())))
    return frozenset(name for name, slope in slopes.items() if mx.any(slope != 0).item())


def backbones(model: Any) -> Iterator[Any]:
    """Modules that hold the list of layers, except the model itself."""
    first = model.layers[0] if getattr(model, "layers", None) else None
    if first is None:
        return
    for name, module in model.named_modules():
        lists = (value for value in module.values() if isinstance(value, list) and value)
        if name and any(v[0] is first for v in lists):
            yield module
