"""A language model as two functions: token ids to hidden states, and hidden states to logits.

Every mlx-lm model ends the same way: a backbone gives hidden states, and a head, scale or soft cap
turns them into logits. Where the two can be told apart differs, so every place that may do is tried
out. Shapes: B rows, T tokens, N tokens of any rows, H hidden, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from grpo_trainer.model_cuts import Cut, CutAfterBackbone, CutBeforeHead, CutBeforeLastHead
from grpo_trainer.trees import leaves, number

_IDS = ((1, 2, 3),)
_TOLERANCE = 1e-3
_FAULTS = (TypeError, ValueError, AttributeError, LookupError)


class SplitForward:
    """The two halves of one model. The weights stay where they are."""

    def __init__(self, cut: Cut, vocabulary: int) -> None:
        self.cut = cut
        self.vocabulary = vocabulary
        """Logits of one token."""

    @classmethod
    def of(cls, model: Any) -> "SplitForward | None":
        """The halves of `model`; None when no two together give what the whole gives.

        Halves whose hidden states are narrower than the vocabulary come first: what is as wide may
        be the logits already.
        """
        try:
            whole = model(mx.array(_IDS))[0]
        except _FAULTS:
            return None
        vocabulary = whole.shape[-1]
        wide = None
        for cut in _cuts(model, vocabulary):
            width = _width(cut, whole)
            if width is not None and width < vocabulary:
                return cls(cut, vocabulary)
            if width is not None and wide is None:
                wide = cls(cut, vocabulary)
        return wide

    def hidden(self, ids_B_T: mx.array) -> mx.array:
        """Hidden states [B, T, H] that the logits are made of."""
        return self.cut.hidden(ids_B_T)

    def logits(self, hidden_N_H: mx.array) -> mx.array:
        """Logits [N, V] of hidden states at any positions."""
        return self.cut.logits(hidden_N_H)


def _width(cut: Cut, whole_T_V: mx.array) -> int | None:
    """Of the hidden states, when the halves give the logits of the whole; None when they do not."""
    try:
        states_T_H = cut.hidden(mx.array(_IDS))[0]
        halves_T_V = cut.logits(states_T_H)
        scale = max(number(mx.abs(whole_T_V).max()), 1.0)
        right = number(mx.abs(whole_T_V - halves_T_V).max()) <= _TOLERANCE * scale
    except _FAULTS:
        return None
    return states_T_H.shape[-1] if right else None


def head_parameters(model: Any, split: SplitForward) -> frozenset[str]:
    """Names of the trainable parameters that turn hidden states into logits.

    Slopes that are not numbers pass backwards through everything, whatever its value is: the first
    factor of a new adapter counts although the second, which is 0, hides it.
    """
    weights = dict(leaves(model.trainable_parameters()))
    states_N_H = mx.ones_like(split.cut.hidden(mx.array(_IDS))[0, :1])

    def logits_of(*values: mx.array) -> list[mx.array]:
        model.update(tree_unflatten(list(zip(weights, values, strict=True))))
        return [split.cut.logits(states_N_H)]

    try:
        no_number = mx.full_like(split.cut.logits(states_N_H), float("nan"))
        _, slopes = mx.vjp(logits_of, list(weights.values()), [no_number])
    finally:
        model.update(tree_unflatten(list(weights.items())))
    reached = []
    for name in reversed(weights):
        if mx.any(mx.isnan(slopes.pop())).item():  # one at a time: each is as large as its weight
            reached.append(name)
    return frozenset(reached)


def _cuts(model: Any, vocabulary: int) -> Iterator[Cut]:
    """Ways that may do for a model with so many logits a token, the best first."""
    for backbone in backbones(model):
        yield CutAfterBackbone(model, backbone)
    for head in _heads(model, vocabulary):
        yield CutBeforeLastHead(model, head)
        yield CutBeforeHead(model, head)


def backbones(model: Any) -> Iterator[Any]:
    """Modules that hold the list of layers, except the model itself."""
    first = model.layers[0] if getattr(model, "layers", None) else None
    if first is None:
        return
    for name, module in model.named_modules():
        lists = (value for value in module.values() if isinstance(value, list) and value)
        if name and any(v[0] is first for v in lists):
            yield module


def _heads(model: Any, vocabulary: int) -> Iterator[Any]:
    """Linear modules and embeddings as wide as the vocabulary; an adapter before what is in it."""
    for _, module in model.named_modules():
        weight = _without_adapter(module).get("weight")
        if isinstance(weight, mx.array) and weight.ndim == 2 and weight.shape[0] == vocabulary:
            yield module


def _without_adapter(module: Any) -> Any:
    """What an adapter of mlx-lm was put on, or the module itself if it is none."""
    if not hasattr(module, "lora_b"):
        return module
    return module["linear"] if "linear" in module else module.get("embedding", module)
