"""The model being trained: loading, what is trainable, and its float32 masters.

Trained weights are float32 whatever the model's precision. With adapters the float32 tensors are
the adapters themselves. In full fine-tuning of a bfloat16 or float16 model the float32 masters lie
beside the model, and each update writes their rounded copies into it: an update of 1e-6 is far
below what bfloat16 can add to a weight near 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map, tree_unflatten
from mlx_lm.tuner.utils import linear_to_lora_layers

from grpo_protocol.config import GRPOConfig
from grpo_trainer.errors import ModelError
from grpo_trainer.model_source import LoadedModel, load_model
from grpo_trainer.randomness import derived_seed
from grpo_trainer.trees import ParameterTree, leaves

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass
class Policy:
    """A loaded model and the tree of float32 weights that training moves."""

    model: Any
    source: LoadedModel
    fine_tune_type: str
    lora_parameters: dict[str, Any] | None
    weights: ParameterTree
    """Trainable float32 tree; the truth that rollouts, updates and checkpoints share."""

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
    """The policy that `config` asks for. Raises `ModelError` with one line."""
    assert config.model is not None
    source = load_model(config.model, on_status)
    model = source.model
    _set_dtype(model, config.dtype)
    lora_parameters = None
    if config.fine_tune_type == "lora":
        lora_parameters = _add_adapters(model, config)
    else:
        _unfreeze_everything(model)
    model.eval()  # new adapters start in training mode, and rollouts come first
    weights = tree_map(lambda w: w.astype(mx.float32), model.trainable_parameters())
    policy = Policy(
        model=model,
        source=source,
        fine_tune_type=config.fine_tune_type,
        lora_parameters=lora_parameters,
        weights=weights,
    )
    if not leaves(weights):
        raise ModelError(f"fine_tune_type={config.fine_tune_type}: the model has no such weights")
    policy.adopt(weights)
    return policy


def _set_dtype(model: Any, dtype: str) -> None:
    if dtype == "auto":
        if mx.default_device() != mx.Device(mx.cpu):
            return
        dtype = "float32"  # 16-bit products are 20 times slower on a CPU
    model.set_dtype(_DTYPES[dtype])


def _add_adapters(model: Any, config: GRPOConfig) -> dict[str, Any]:
    model.freeze()
    parameters = {
        "rank": config.lora_rank,
        "scale": config.lora_scale,
        "dropout": config.lora_dropout,
    }
    mx.random.seed(derived_seed(config.seed, "adapters"))
    num_layers = len(model.layers) if config.lora_layers == -1 else config.lora_layers
    linear_to_lora_layers(model, num_layers, parameters)
    return {"num_layers": num_layers, "lora_parameters": parameters}


def _unfreeze_everything(model: Any) -> None:
    if any(hasattr(module, "bits") for _, module in model.named_modules()):
        raise ModelError(
            "fine_tune_type=full: quantized weights cannot be trained; use fine_tune_type=lora"
        )
    model.unfreeze()
