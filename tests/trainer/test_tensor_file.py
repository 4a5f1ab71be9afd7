"""Files of tensors: the same tensors give the same bytes."""

import shutil
from pathlib import Path

import mlx.core as mx

from grpo_trainer.tensor_file import read_tensors, write_tensors
from learners import are_identical


def test_a_tensor_file_depends_on_its_tensors_alone(tmp_path: Path) -> None:
    tensors = {
        "b": mx.arange(6, dtype=mx.float32).reshape(2, 3),
        "a": mx.array([1.5, -2.25], dtype=mx.bfloat16),
        "c": mx.array(7, dtype=mx.uint64),
        "view": mx.arange(12).reshape(3, 4).T,
    }
    write_tensors(tmp_path / "one", tensors)
    write_tensors(tmp_path / "two", dict(reversed(tensors.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    shutil.move(tmp_path / "one", tmp_path / "one.safetensors")
    found = read_tensors(tmp_path / "one.safetensors")
    assert are_identical(found, tensors)
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in tensors.items()
    }
