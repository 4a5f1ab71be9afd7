"""safetensors files whose bytes depend on nothing but their tensors."""

from pathlib import Path
from typing import cast

import mlx.core as mx
import numpy as np
import safetensors
from mlx.utils import tree_unflatten

from grpo_trainer.errors import CheckpointError
from grpo_trainer.trees import ParameterTree, leaves


def write_tensors(
    path: Path, tensors: dict[str, mx.array], metadata: dict[str, str] | None = None
) -> None:
    """Writes `tensors` sorted by name; the same tensors give the same file, byte for byte.

    Raises `OSError` when the file cannot be written.
    """
    buffers, specs = [], {}
    for name in sorted(tensors):
        array = tensors[name]
        # NumPy has no bfloat16; its bits travel as 16-bit integers.
        plain = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
        buffer = np.ascontiguousarray(np.array(plain))
        buffers.append(buffer)  # the specs hold bare pointers: the memory must outlive the write
        specs[name] = safetensors.TensorSpec(
            dtype=str(array.dtype).removeprefix("mlx.core."),
            shape=list(array.shape),
            data_ptr=buffer.ctypes.data,
            data_len=buffer.nbytes,
        )
    try:
        safetensors.serialize_file(specs, str(path), metadata)
    except safetensors.SafetensorError as error:  # such as a full disk, which is no OSError there
        raise OSError(str(error)) from error
    path.chmod(0o644)  # the library makes files that only their owner can read


def read_tensors(path: Path) -> dict[str, mx.array]:
    """All tensors of a file."""
    return cast("dict[str, mx.array]", mx.load(str(path)))


def read_tree(path: Path, *, like: ParameterTree) -> ParameterTree:
    """The tensors of `path` as a tree, if names, shapes and types are those of the tree `like`.

    Raises `CheckpointError`.
    """
    tensors = read_tensors(path)
    shapes = {name: (value.shape, value.dtype) for name, value in leaves(like)}
    found = {name: (value.shape, value.dtype) for name, value in tensors.items()}
    if shapes != found:
        name = min(n for n in shapes | found if shapes.get(n) != found.get(n))
        raise CheckpointError(
            f"{path}: tensor {name} does not match the model; resume with the settings and the "
            "model that wrote it"
        )
    # In the order of the live tree: sums over all tensors must add up in the same order again.
    return cast("ParameterTree", tree_unflatten([(name, tensors[name]) for name in shapes]))
