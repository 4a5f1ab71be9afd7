"""The model being trained: loading, what is trainable, and its float32 masters.

Trained weights are float32 whatever the model's precision. With adapters the float32 tensors are
the adapters themselves. In full fine-tuning of a bfloat16 or float16 model the float32 masters lie
beside the model, and each update writes their rounded copies into it: an update of 1e-6 is far
below what bfloat16 can add to a weight near 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map, tree_map_with_path, tree_unflatten

from grpo_protocol.config import GRPOConfig
from grpo_protocol.settings.model import ADAPTER_TYPES
from grpo_trainer.adapter_folder import AdapterFolder
from grpo_trainer.adapters import add_adapters
from grpo_trainer.errors import ModelError
from grpo_trainer.full_fine_tuning import refuse_quantized, unfreeze
from grpo_trainer.machine_memory import is_on_cpu
from grpo_trainer.model_source import LoadedModel, load_model
from grpo_trainer.trees import ParameterTree, leaves

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass
class Policy:
    """A loaded model and the tree of float32 weights that training moves."""

    model: Any
    source: LoadedModel
    fine_tune_type: str
    lora_parameters: dict[str, Any] | None
    """With adapters `num_layers` and `lora_parameters` as an mlx-lm adapter config has them."""
    weights: ParameterTree
    """Trainable float32 tree; the truth that rollouts, updates and checkpoints share."""
    notes: tuple[str, ...] = ()
    """Warnings: what was asked for and is left out."""

    def __post_init__(self) -> None:
        self._dtypes = tree_map(lambda weight: weight.dtype, self.model.trainable_parameters())

    def install(self, weights: ParameterTree) -> None:
        """Puts `weights`, rounded to the model's precision, into the model; evaluates nothing."""
        rounded = tree_map(lambda weight, dtype: weight.astype(dtype), weights, self._dtypes)
        self.model.update(rounded)

    def install_named(self, weights: dict[str, mx.array]) -> None:
        """The same for some weights, by name."""
        dtypes: dict[str, Any] = dict(leaves(self._dtypes))
        rounded = [(name, weight.astype(dtypes[name])) for name, weight in weights.items()]
        self.model.update(tree_unflatten(rounded))

    def adopt(self, weights: ParameterTree) -> None:
        """Makes `weights` the current ones, for rollouts too."""
        self.weights = weights
        self.install(weights)
        mx.eval(self.weights, self.model.parameters())

    @property
    def has_separate_masters(self) -> bool:
        """Whether the model holds rounded copies, so that checkpoints need both."""
        return any(dtype != mx.float32 for _, dtype in leaves(self._dtypes))

    @property
    def num_trainable(self) -> int:
        """Trainable parameters."""
        return sum(weight.size for _, weight in leaves(self.weights))


def load_policy(config: GRPOConfig, on_status: Callable[[str], None]) -> Policy:
    """The policy that `config` asks for, from the adapters that it names if there are any.

    Raises `ConfigError` for a bad `adapter_path` before the model is loaded, and `ModelError`
    otherwise; each has one line.
    """
    start = AdapterFolder.read(config.adapter_path) if config.adapter_path else None
    if start is not None:
        config = start.apply_to(config)
    assert config.model is not None
    source = load_model(config.model, on_status, partial(_check_config, config))
    model = source.model
    if not hasattr(model, "_no_grad"):  # recurrent_gemma's leaves out what `Module` sets up
        model._no_grad = set()
    _set_dtype(model, config.dtype)
    parameters: dict[str, Any] | None = None
    notes: tuple[str, ...]
    if config.fine_tune_type in ADAPTER_TYPES:
        try:
            parameters, notes = add_adapters(model, config, start.tensors if start else ())
        except ModelError as error:
            if start is None:
                raise
            raise ModelError(
                f"adapter_path={config.adapter_path!r}: the adapters are of another model: {error}"
            ) from error
    else:
        notes = unfreeze(model, config.model)
    model.eval()  # new adapters start in training mode, and rollouts come first
    weights = tree_map(lambda w: w.astype(mx.float32), model.trainable_parameters())
    if start is not None:
        weights = start.tree_for(model)
    policy = Policy(
        model=model,
        source=source,
        fine_tune_type=config.fine_tune_type,
        lora_parameters=parameters,
        weights=weights,
        notes=notes,
    )
    if not leaves(weights):
        raise ModelError(f"fine_tune_type={config.fine_tune_type}: the model has no such weights")
    policy.adopt(weights)
    return policy


def _check_config(config: GRPOConfig, model_config: dict[str, Any]) -> None:
    """Refuses what the config.json of a model rules out, before its weights are read."""
    assert config.model is not None
    if config.fine_tune_type == "full":
        refuse_quantized(model_config, config.model)
    if model_config.get("quantize_activations"):
        raise ModelError(
            f"model={config.model!r}: quantizes activations, which cannot be trained through; "
            "remove quantize_activations from its config.json"
        )


def _set_dtype(model: Any, dtype: str) -> None:
    if dtype == "auto":
        if not is_on_cpu():
            return
        dtype = "float32"  # 16-bit products are 20 times slower on a CPU
    wanted = _DTYPES[dtype]
    # Some weights, such as a router's bias, are float32 in every file of their architecture.
    may_be_coarse = getattr(model, "cast_predicate", lambda name: True)

    def cast(name: str, weight: mx.array) -> mx.array:
        is_float = mx.issubdtype(weight.dtype, mx.floating)
        return weight.astype(wanted) if is_float and (is_wide or may_be_coarse(name)) else weight

    is_wide = wanted == mx.float32
    model.update(tree_map_with_path(cast, model.parameters()))
