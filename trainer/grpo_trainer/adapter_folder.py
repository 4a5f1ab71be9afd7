"""mlx-lm adapter folders to start from: what they were made with, and their tensors.

A folder is read strictly: whatever of it would be dropped or guessed is refused, and so are
settings that say something else than the folder does.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import msgspec
from mlx.utils import tree_unflatten

from grpo_protocol.config import GRPOConfig
from grpo_protocol.config_input import ConfigError, validate_config
from grpo_protocol.settings.kinds import Count, Positive
from grpo_protocol.settings.model import FineTuneType
from grpo_trainer.errors import ModelError, first_line
from grpo_trainer.tensor_file import read_tensors
from grpo_trainer.trees import ParameterTree, leaves

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapters.safetensors"
_LEAVES = {"lora_a", "lora_b", "m"}


class _LoraParameters(msgspec.Struct):
    rank: Count
    scale: Positive
    keys: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None


class _AdapterConfig(msgspec.Struct):
    """The keys of adapter_config.json that mlx-lm looks at, and one that is of PEFT's."""

    fine_tune_type: FineTuneType = "lora"
    num_layers: int | None = None
    lora_layers: int | None = None
    """What older versions of mlx-lm call `num_layers`."""
    lora_parameters: _LoraParameters | None = None
    peft_type: Any = None


@dataclass(frozen=True)
class AdapterFolder:
    """A folder that was read and makes sense by itself; which model it fits is not known yet."""

    name: str
    """As `adapter_path` gives it."""
    settings: dict[str, Any]
    """Keys of `GRPOConfig` that it decides; `lora_keys` is empty when it does not list them."""
    tensors: dict[str, mx.array]
    """float32, by their names in the model."""

    @classmethod
    def read(cls, name: str) -> "AdapterFolder":
        """Raises `ConfigError` with one line that names the file and what is wrong with it."""
        folder = Path(name).expanduser()
        _check_files(folder, name)
        settings = _read_settings(folder, name)
        return cls(name, settings, _read_weights(folder, name, settings["lora_rank"]))

    def apply_to(self, config: GRPOConfig) -> GRPOConfig:
        """`config` with the folder's settings.

        Raises `ConfigError` where `config` has one that is neither the folder's nor the default.
        """
        defaults = {field.name: field for field in msgspec.structs.fields(config)}
        for key, value in self.settings.items():
            asked, field = getattr(config, key), defaults[key]
            is_default = asked == field.default or asked == []
            if not is_default and _comparable(asked) != _comparable(value):
                raise ConfigError(
                    f"{key}={asked!r}: adapter_path={self.name!r} was made with "
                    f"{f'{key}={value!r}' if value != [] else f'no {key}'}; leave {key} out"
                )
        return validate_config(msgspec.structs.replace(config, **self.settings))

    def tree_for(self, model: Any) -> ParameterTree:
        """Its tensors in the order of the model's, when names and shapes are the model's.

        Raises `ModelError` naming the first tensor that is not.
        """
        needed = {name: weight.shape for name, weight in leaves(model.trainable_parameters())}
        found = {name: weight.shape for name, weight in self.tensors.items()}
        if needed != found:
            name = min(n for n in needed | found if needed.get(n) != found.get(n))
            raise ModelError(
                f"adapter_path={self.name!r}: tensor {name} "
                f"{_mismatch(found.get(name), needed.get(name))}; name the adapters of this model"
            )
        tree: ParameterTree = tree_unflatten([(name, self.tensors[name]) for name in needed])
        return tree


def with_adapter_settings(config: GRPOConfig) -> GRPOConfig:
    """`config` with what the folder `adapter_path` decides; `config` itself without one.

    The rank, the scale, the layers, the keys and the kind are the folder's. Raises `ConfigError`
    when the folder cannot be used or `config` asks for something else.
    """
    if config.adapter_path is None:
        return config
    return AdapterFolder.read(config.adapter_path).apply_to(config)


def adapter_note(config: GRPOConfig) -> str:
    """What the adapters are that a run starts from, `config` being that of `apply_to`."""
    keys = ("fine_tune_type", "lora_rank", "lora_scale", "lora_layers")
    settings = " ".join(f"{key}={getattr(config, key)}" for key in keys)
    return f"starting from the adapters in {config.adapter_path}: {settings}"


def _check_files(folder: Path, name: str) -> None:
    if not folder.is_dir():
        raise ConfigError(f"adapter_path={name!r}: no such folder; check the path")
    if (folder / "adapter_model.safetensors").exists() or (folder / "adapter_model.bin").exists():
        raise _peft(name)
    if not (folder / CONFIG_NAME).is_file():
        remedy = "name an mlx-lm adapter folder"
        if (folder / "config.json").is_file():
            remedy = "a whole model is named by model"
        raise ConfigError(f"adapter_path={name!r}: the folder has no {CONFIG_NAME}; {remedy}")


def _read_settings(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode((folder / CONFIG_NAME).read_bytes(), type=_AdapterConfig)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"adapter_path={name!r}: {CONFIG_NAME} cannot be read: {first_line(error)}"
        ) from error
    if found.peft_type is not None:
        raise _peft(name)
    if found.fine_tune_type == "full":
        raise ConfigError(
            f"adapter_path={name!r}: holds whole weights (fine_tune_type=full); "
            "merge them with `mlx_lm.fuse` and name the result with model"
        )
    layers = found.lora_layers if found.num_layers is None else found.num_layers
    parameters = found.lora_parameters
    if layers is None or parameters is None:
        missing = "num_layers" if layers is None else "lora_parameters"
        raise ConfigError(f"adapter_path={name!r}: {CONFIG_NAME} has no {missing}; add it")
    return {
        "fine_tune_type": found.fine_tune_type,
        "lora_rank": parameters.rank,
        "lora_scale": parameters.scale,
        "lora_layers": layers if layers > 0 else -1,  # mlx-lm takes all layers for any of these
        "lora_keys": parameters.keys or [],
    }


def _read_weights(folder: Path, name: str, rank: int) -> dict[str, mx.array]:
    path = folder / WEIGHTS_NAME
    if not path.is_file():
        raise ConfigError(f"adapter_path={name!r}: the folder has no {WEIGHTS_NAME}; copy it there")
    try:
        tensors = read_tensors(path)
        mx.eval(tensors)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"adapter_path={name!r}: {WEIGHTS_NAME} cannot be read: {first_line(error)}"
        ) from error
    for tensor in sorted(tensors):
        if problem := _problem(tensor, tensors[tensor], rank):
            raise ConfigError(f"adapter_path={name!r}: tensor {tensor} {problem}")
    if not tensors:
        raise ConfigError(f"adapter_path={name!r}: {WEIGHTS_NAME} holds no tensors")
    return {tensor: weight.astype(mx.float32) for tensor, weight in tensors.items()}


def _problem(name: str, weight: mx.array, rank: int) -> str | None:
    leaf = name.rpartition(".")[2]
    if leaf not in _LEAVES:
        return "is no adapter of mlx-lm; name a folder of adapters alone"
    if not mx.issubdtype(weight.dtype, mx.floating):
        return "holds no floating-point numbers; save it again"
    if leaf != "m" and rank not in weight.shape:
        return (
            f"has the shape {tuple(weight.shape)}, which is not of rank {rank} as in {CONFIG_NAME}"
        )
    if not mx.isfinite(weight).all().item():
        return "holds NaN or infinite numbers; start from an earlier checkpoint"
    return None


def _mismatch(found: tuple[int, ...] | None, needed: tuple[int, ...] | None) -> str:
    if found is None:
        return "is missing"
    if needed is None:
        return "fits nothing in the model"
    return f"has the shape {tuple(found)} where the model needs {tuple(needed)}"


def _comparable(value: Any) -> Any:
    """Keys mean the same in any order."""
    return sorted(set(value)) if isinstance(value, list) else value


def _peft(name: str) -> ConfigError:
    return ConfigError(
        f"adapter_path={name!r}: is a PEFT folder; convert it to mlx-lm's form "
        f"({CONFIG_NAME} and {WEIGHTS_NAME}), or merge it into its model with PEFT"
    )
