"""How a micro-batch is cut into chunks of rows that go through the model one after the other.

Every loss is a sum over rows whose divisors are known beforehand, so the gradients of the chunks
add up to those of the micro-batch. Nothing depends on how much memory happens to be free: the same
run is cut the same way on the same kind of machine.
"""

from typing import Any

from grpo_protocol.config import GRPOConfig
from grpo_trainer.machine_memory import gpu_memory
from grpo_trainer.model_shape import ModelShape, activation_size
from grpo_trainer.training_rows import MicroBatch

CPU_BYTES = 2**29
"""Activations of one chunk on a CPU, where more rows at a time are not faster."""
_SHARE_OF_GPU = 8


class RowChunks:
    """Cuts the micro-batches of one model; row by row when it does not tell its sizes."""

    def __init__(self, model: Any, config: GRPOConfig) -> None:
        self._shape = ModelShape.of_model(model)
        self._bytes_each = activation_size(model)
        self._most_rows = config.forward_chunk_size

    def of(self, batch: MicroBatch) -> list[MicroBatch]:
        """`batch` in chunks of whole rows, in its order; at least one row each."""
        chunks: list[list[Any]] = []
        longest = 0
        for row in batch:
            length = max(longest, len(row.prompt_ids) + len(row.completion_ids) - 1)
            if chunks and self._fit(len(chunks[-1]) + 1, length):
                chunks[-1].append(row)
                longest = length
            else:
                chunks.append([row])
                longest = len(row.prompt_ids) + len(row.completion_ids) - 1
        return list(chunks)

    def _fit(self, num_rows: int, length: int) -> bool:
        if self._most_rows is not None:
            return num_rows <= self._most_rows
        if self._shape is None:  # the activations may be of any size
            return False
        # Checkpoints are to make a chunk smaller, and not to let more rows into it.
        numbers = self._shape.activations(length)
        return num_rows * numbers * self._bytes_each <= activation_bytes()


def activation_bytes() -> int:
    """Bytes of activations that a chunk may take: a constant of the machine."""
    on_gpu = gpu_memory()
    return CPU_BYTES if on_gpu is None else on_gpu // _SHARE_OF_GPU
