"""Which modules of a model get low-rank adapters, and putting them there as mlx-lm does.

A module is named as mlx-lm names it: by its path inside a layer, such as `self_attn.q_proj`, which
means that module of every layer trained, or by its path in the whole model, such as `lm_head`.
mlx-lm passes over a name that fits nothing and takes any number of layers; here both are refused,
and so is what its adapters would compute wrongly.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear
from mlx.utils import tree_map, tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.tuner.dora import DoRAEmbedding
from mlx_lm.tuner.utils import linear_to_lora_layers

from grpo_protocol.config import GRPOConfig
from grpo_trainer.errors import ModelError
from grpo_trainer.randomness import derived_seed

_EMBEDDINGS = (Embedding, QuantizedEmbedding)
_EXPERTS = (SwitchLinear, QuantizedSwitchLinear)
_TYPES = (Linear, QuantizedLinear, *_EXPERTS, *_EMBEDDINGS)
_WEIGHT_BITS = 32


class Adapters(NamedTuple):
    """What was added to a model."""

    parameters: dict[str, Any]
    """`num_layers` and `lora_parameters` as an mlx-lm adapter config has them."""
    notes: tuple[str, ...]
    """Lines about modules that could not get an adapter."""


def add_adapters(model: Any, config: GRPOConfig, trained: Iterable[str] = ()) -> Adapters:
    """Freezes `model` and adds new float32 adapters, which change nothing yet.

    `trained` are names of adapter tensors that will be loaded: without `lora_keys` the modules that
    they belong to get adapters. Raises `ModelError` naming the setting to change.
    """
    modules = _Modules.of(model, config.lora_layers, may_be_fewer=bool(trained))
    notes: tuple[str, ...] = ()
    keys = config.lora_keys or modules.keys_of(trained)
    is_chosen = bool(keys)
    if is_chosen:
        keys = _checked(keys, modules, config)
    else:
        keys, notes = _default_keys(modules, config.fine_tune_type)
    parameters: dict[str, Any] = {
        "rank": config.lora_rank,
        "scale": config.lora_scale,
        "dropout": config.lora_dropout,
        "keys": sorted(set(keys)),
    }
    _attach(model, modules.num_layers, parameters, config)
    while key := _in_the_way(model, modules):
        reason = "the model reaches for its weight instead of calling it"
        if is_chosen:
            raise ModelError(f"lora_keys={key!r}: {reason}; leave it out")
        parameters["keys"].remove(key)
        _take_off(model, modules, key)
        notes = (
            *notes,
            f"fine_tune_type={config.fine_tune_type}: no adapters for {key} ({reason})",
        )
    return Adapters({"num_layers": modules.num_layers, "lora_parameters": parameters}, notes)


def _attach(model: Any, num_layers: int, parameters: dict[str, Any], config: GRPOConfig) -> None:
    model.freeze()
    mx.random.seed(derived_seed(config.seed, "adapters"))
    use_dora = config.fine_tune_type == "dora"
    try:
        linear_to_lora_layers(model, num_layers, parameters, use_dora=use_dora)
    except ValueError as error:  # such as a module that two layers share
        raise ModelError(f"fine_tune_type={config.fine_tune_type}: {error}") from error
    _keep_in_float32(model)


class _Modules(NamedTuple):
    """The modules of a model by the names that keys may have."""

    num_layers: int
    prefixes: tuple[str, ...]
    """Path of each layer in the model."""
    inside: dict[str, list[Any]]
    """Those of the last `num_layers` layers, by their path inside a layer."""
    above: dict[str, Any]
    """Those of the layers before."""
    whole: dict[str, Any]
    """All of them by their path in the model."""

    @classmethod
    def of(cls, model: Any, wanted: int, *, may_be_fewer: bool) -> "_Modules":
        layers = list(model.layers)
        if wanted > len(layers) and not may_be_fewer:
            raise ModelError(
                f"lora_layers={wanted}: the model has {len(layers)} layers; "
                f"give a number from 1 to {len(layers)}, or -1 for all"
            )
        number = len(layers) if wanted == -1 else min(wanted, len(layers))
        first = len(layers) - number
        inside: dict[str, list[Any]] = {}
        above: dict[str, Any] = {}
        for index, layer in enumerate(layers):
            for name, module in layer.named_modules():
                if name and index < first:
                    above[name] = module
                elif name:
                    inside.setdefault(name, []).append(module)
        whole = {name: module for name, module in model.named_modules() if name}
        paths = {id(module): name for name, module in whole.items()}
        prefixes = tuple(paths[id(layer)] for layer in layers)
        return cls(number, prefixes, inside, above, whole)

    def keys_of(self, tensors: Iterable[str]) -> list[str]:
        """Keys of the modules that adapter tensors of such names belong to."""
        return list({self.key_of(name.rpartition(".")[0]) for name in tensors})

    def named(self, key: str) -> list[Any]:
        """The modules that `key` stands for in mlx-lm."""
        whole = [self.whole[key]] if key in self.whole else []
        return self.inside.get(key, []) + whole

    def outside_layers(self) -> dict[str, Any]:
        """Modules that are of no layer."""
        inside = tuple(f"{prefix}." for prefix in self.prefixes)
        return {name: module for name, module in self.whole.items() if not name.startswith(inside)}

    def key_of(self, path: str) -> str:
        """The key of the module at `path`."""
        for prefix in self.prefixes:
            if path.startswith(f"{prefix}."):
                return path.removeprefix(f"{prefix}.")
        return path


def _default_keys(modules: _Modules, kind: str) -> tuple[list[str], tuple[str, ...]]:
    """mlx-lm's: every linear module, expert and embedding of the layers, routers included."""
    keys, left_out = [], []
    for name, found in modules.inside.items():
        if not any(isinstance(module, _TYPES) for module in found):
            continue
        reason = next(filter(None, (_unfit(module, kind) for module in found)), None)
        if reason is None:
            keys.append(name)
        else:
            left_out.append(f"{name} ({reason})")
    if not keys:
        detail = f": {'; '.join(sorted(left_out))}" if left_out else ""
        raise ModelError(
            f"fine_tune_type={kind}: no module of the layers can have an adapter{detail}"
        )
    if not left_out:
        return keys, ()
    note = f"fine_tune_type={kind}: no adapters for {', '.join(sorted(left_out))}"
    return keys, (note,)


def _checked(keys: list[str], modules: _Modules, config: GRPOConfig) -> list[str]:
    kind = config.fine_tune_type
    seen: dict[int, str] = {}
    for key in dict.fromkeys(keys):
        found = modules.named(key)
        if not found:
            raise ModelError(f"lora_keys={key!r}: {_what_there_is(key, modules, kind)}")
        for module in found:
            if reason := _unfit(module, kind):
                raise ModelError(f"lora_keys={key!r}: {reason}; leave it out or use another kind")
            if id(module) in seen:
                raise ModelError(
                    f"lora_keys={key!r}: names a module that {seen[id(module)]!r} names too; "
                    "leave one out"
                )
            seen[id(module)] = key
    return keys


def _unfit(module: Any, kind: str) -> str | None:
    """Why mlx-lm has no right adapter of that kind for `module`."""
    if not isinstance(module, _TYPES):
        return f"{type(module).__name__} takes no adapter"
    if hasattr(module, "to_lora"):
        return "its adapter is of a form that mlx-lm cannot read back"
    if kind == "lora":
        return None
    if isinstance(module, _EXPERTS):
        return "mlx-lm has no DoRA for experts"
    if isinstance(module, QuantizedEmbedding):
        return "mlx-lm has no DoRA for quantized embeddings"
    if isinstance(module, QuantizedLinear) and _WEIGHT_BITS % module.bits:
        return f"mlx-lm has no DoRA for weights of {module.bits} bits"
    return None


def _what_there_is(key: str, modules: _Modules, kind: str) -> str:
    if key in modules.above:
        return f"the last {modules.num_layers} layers have none; raise lora_layers"
    everywhere = {**modules.above, **{name: found[0] for name, found in modules.inside.items()}}
    names = [
        name
        for name, module in {**everywhere, **modules.outside_layers()}.items()
        if not _unfit(module, kind)
    ]
    last = key.rpartition(".")[2]
    near = [name for name in names if name.rpartition(".")[2] == last]
    near += [name for name in get_close_matches(key, names, n=3) if name not in near]
    others = sorted(set(names) - set(near))
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return f"no such module; {guess}there are{' also' if near else ''} {', '.join(others)}"


def _keep_in_float32(model: Any) -> None:
    """New adapters have the model's precision, which is too coarse to train in.

    So have the sizes that DoRA took of an embedding's rows: they are taken once more.
    """
    for _, module in model.named_modules():
        if isinstance(module, DoRAEmbedding):
            module.m = mx.linalg.norm(module.embedding.weight.astype(mx.float32), axis=1)
    model.update(tree_map(lambda weight: weight.astype(mx.float32), model.trainable_parameters()))


def _in_the_way(model: Any, modules: _Modules) -> str | None:
    """The key of an adapter with which `model` cannot run; nothing is computed to find out."""
    try:
        model(mx.array([[1, 2, 3]]))
    except AttributeError as error:
        paths = [name for name, module in model.named_modules() if module is error.obj]
        if not paths or not hasattr(error.obj, "lora_b"):
            raise
        return modules.key_of(paths[0])
    return None


def _take_off(model: Any, modules: _Modules, key: str) -> None:
    plain = [
        (name, module.linear if "linear" in module else module.embedding)
        for name, module in model.named_modules()
        if modules.key_of(name) == key and hasattr(module, "lora_b")
    ]
    model.update_modules(tree_unflatten(plain))
