"""The trained weights in a folder, in the form that other programs read, and back from it.

Adapters make an mlx-lm adapter folder, full weights a whole mlx-lm model folder: `mlx_lm.generate`,
`mlx_lm.fuse` and `mlx_lm.server` take either as it is.
"""

import shutil
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import msgspec
from mlx.utils import tree_unflatten

from grpo_protocol.settings.model import ADAPTER_TYPES
from grpo_trainer import adapter_folder
from grpo_trainer.errors import CheckpointError
from grpo_trainer.policy import Policy
from grpo_trainer.tensor_file import read_tree, write_tensors
from grpo_trainer.trees import ParameterTree, leaves

MASTERS_NAME = "master_weights.safetensors"
MODEL_NAME = "model.safetensors"
_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
    "*.tiktoken",
)


def write(folder: Path, policy: Policy) -> None:
    """Writes the tensors of `policy`, and the files of its tokenizer. Raises `OSError`."""
    if _has_adapters(policy):
        write_tensors(folder / adapter_folder.WEIGHTS_NAME, dict(leaves(policy.weights)))
    else:
        # One file of any size, which mlx-lm and transformers take as they take several.
        tensors = dict(leaves(policy.model.parameters()))
        write_tensors(folder / MODEL_NAME, tensors, metadata={"format": "mlx"})
        if policy.has_separate_masters:
            write_tensors(folder / MASTERS_NAME, dict(leaves(policy.weights)))
    for pattern in _TOKENIZER_FILES:
        for path in sorted(policy.source.folder.glob(pattern)):
            shutil.copy2(path, folder / path.name)


def descriptions(policy: Policy) -> dict[str, dict[str, Any]]:
    """What the JSON files beside the tensors have to say, by the names of the files."""
    if not _has_adapters(policy):
        return {"config.json": _model_config(policy)}
    assert policy.lora_parameters is not None
    base = {"fine_tune_type": policy.fine_tune_type, "model": policy.source.name}
    return {adapter_folder.CONFIG_NAME: {**base, **policy.lora_parameters}}


def read(folder: Path, policy: Policy) -> ParameterTree:
    """The trained weights that `folder` holds, float32.

    Raises `CheckpointError` unless they are those of `policy`: the same names and shapes, and
    adapters of the same scale.
    """
    path = folder / MASTERS_NAME
    if not path.is_file():
        path = folder / (adapter_folder.WEIGHTS_NAME if _has_adapters(policy) else MODEL_NAME)
    if not path.is_file():
        raise CheckpointError(
            f"resume={str(folder)!r}: holds no {path.name}, which "
            f"fine_tune_type={policy.fine_tune_type} needs; resume with the settings that wrote it"
        )
    if path.name == MODEL_NAME:
        return _trained_part(path, policy)
    weights = read_tree(path, like=policy.weights)
    if _has_adapters(policy):
        _check_adapter_config(folder, policy)
    return weights


def _trained_part(path: Path, policy: Policy) -> ParameterTree:
    """Of a file with the whole model, in which some weights may be frozen."""
    trained = dict(leaves(policy.weights))
    model = {**dict(leaves(policy.model.parameters())), **trained}
    found = dict(leaves(read_tree(path, like=tree_unflatten(list(model.items())))))
    return cast("ParameterTree", tree_unflatten([(name, found[name]) for name in trained]))


def _check_adapter_config(folder: Path, policy: Policy) -> None:
    """Adapters of another scale have the same shapes, and mean something else."""
    path = folder / adapter_folder.CONFIG_NAME
    try:
        written = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        then = {"num_layers": written["num_layers"], **written["lora_parameters"]}
    except (OSError, msgspec.MsgspecError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"resume={str(folder)!r}: {path.name} cannot be read ({error!r}); use an earlier one"
        ) from error
    assert policy.lora_parameters is not None
    now = {**policy.lora_parameters, **policy.lora_parameters["lora_parameters"]}
    for key in ("rank", "scale", "num_layers", "keys"):
        if key in then and then[key] != now[key]:
            raise CheckpointError(
                f"resume={str(folder)!r}: its adapters have {key}={then[key]!r}, not "
                f"{now[key]!r}; resume with the settings that wrote it"
            )


def _model_config(policy: Policy) -> dict[str, Any]:
    """That of the base model, with the type that the weights are saved in."""
    config = dict(policy.source.config_file)
    config.pop("_name_or_path", None)  # where someone had the base model
    dtypes = {weight.dtype for _, weight in leaves(policy.model.parameters())}
    if len(dtypes) == 1:
        name = _name_of(dtypes.pop())
        config.update({key: name for key in ("dtype", "torch_dtype") if key in config})
    return config


def _name_of(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _has_adapters(policy: Policy) -> bool:
    return policy.fine_tune_type in ADAPTER_TYPES
