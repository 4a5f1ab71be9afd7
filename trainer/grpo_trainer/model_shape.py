"""The sizes of a language model that decide how much memory a pass through it takes."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from grpo_trainer.trees import leaves

# What architectures call them; of several the first that is there counts.
_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "model_dim"),
    "num_heads": ("num_attention_heads", "n_heads", "n_head", "num_heads"),
    "num_kv_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "head_size", "attention_head_dim"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim"),
    "vocabulary": ("vocab_size", "padded_vocab_size", "n_vocab"),
}
_STATE = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
"""Of gated-delta layers, which mlx-lm trains token by token."""
_HIDDEN, _QUERIES, _KEYS, _GATES = 5, 4, 4, 3
"""Arrays that a layer keeps for the gradient: of hidden size, of all queries, of all keys,
and of the inner size of its feed-forward network. Values count as keys."""
_SCORES = 1.5
"""Arrays [heads, length, length] that a layer keeps for the gradient."""
_STATES = 1.2
"""Arrays of a recurrent layer's state that it keeps for each token."""
_BACKWARD = 1.2
"""What the gradient of a layer takes while it is computed, in units of what the layer keeps."""


@dataclass(frozen=True)
class ModelShape:
    """Of the layers, were they all alike."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Of all experts together that a token goes through."""
    vocabulary: int
    state_size: int = 0
    """Numbers of the state that a recurrent layer keeps for every token while it is trained."""

    @classmethod
    def of_model(cls, model: Any) -> "ModelShape | None":
        """That of a loaded model, if its arguments tell."""
        arguments = getattr(model, "args", None)
        return cls.of(vars(arguments)) if hasattr(arguments, "__dict__") else None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "ModelShape | None":
        """That of a `config.json` or of a model's arguments, if they tell."""
        text = settings.get("text_config")
        if text is not None:
            settings = {**settings, **(text if isinstance(text, Mapping) else vars(text))}
        found = {ours: _first(settings, names) for ours, names in _NAMES.items()}
        layers, hidden = found["num_layers"], found["hidden_size"]
        if not layers or not hidden:
            return None
        heads = found["num_heads"] or max(1, hidden // 64)
        return cls(
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=found["num_kv_heads"] or heads,
            head_dim=found["head_dim"] or hidden // heads,
            intermediate_size=_inner_size(settings) or found["intermediate_size"] or 4 * hidden,
            vocabulary=found["vocabulary"] or 0,
            state_size=math.prod(_first(settings, (name,)) or 0 for name in _STATE),
        )

    def activations(self, length: int, *, checkpointed: bool = False) -> int:
        """Numbers that one row of `length` tokens takes at most until its gradient is computed.

        `checkpointed` layers keep their input alone, and one at a time all the rest.
        """
        token = (
            _HIDDEN * self.hidden_size
            + _QUERIES * self.num_heads * self.head_dim
            + _KEYS * self.num_kv_heads * self.head_dim
            + _GATES * self.intermediate_size
            + _STATES * self.state_size
        )
        layer = length * token + _SCORES * self.num_heads * length**2
        if checkpointed:
            inputs = self.num_layers * length * self.hidden_size
            return int(inputs + (1 + _BACKWARD) * layer)
        return int((self.num_layers + _BACKWARD) * layer)

    @property
    def cached_numbers(self) -> int:
        """Keys and values of one token, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def activation_size(model: Any) -> int:
    """Bytes of one activation: of the precision that most of the model's own weights have.

    Adapters are float32 and give back what they were given; packed weights are integers.
    """
    adapters = {name for name, _ in leaves(model.trainable_parameters())}
    weights = [
        (name not in adapters, weight)
        for name, weight in leaves(model.parameters())
        if mx.issubdtype(weight.dtype, mx.floating)
    ]
    is_frozen_there = any(frozen for frozen, _ in weights)
    bytes_of: Counter[mx.Dtype] = Counter()
    for frozen, weight in weights:
        if frozen or not is_frozen_there:
            bytes_of[weight.dtype] += weight.nbytes
    return int(bytes_of.most_common(1)[0][0].size) if bytes_of else 4


def _first(settings: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    values = (settings.get(name) for name in names)
    # Where layers differ a list has one value for each; the largest decides.
    sizes = (max(value) if isinstance(value, list) and value else value for value in values)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _inner_size(settings: Mapping[str, Any]) -> int | None:
    """Of a mixture of experts: those that a token goes through, and the shared ones."""
    size = _first(settings, ("moe_intermediate_size", "expert_ffn_hidden_size"))
    count = _first(settings, ("num_experts_per_tok", "moe_topk", "num_experts_per_token"))
    if size is None or count is None:
        return None
    shared = _first(settings, ("shared_expert_intermediate_size",)) or 0
    dense = _first(settings, _NAMES["intermediate_size"]) or 0
    return max(size * count + shared, dense)
