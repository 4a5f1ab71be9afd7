"""Rows to learn from, and their tensors. Shapes: B rows, T target positions (all but the first).

Rows are prompt and completion padded on the right, where causal attention never looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import mlx.core as mx


@dataclass(frozen=True)
class TrainingRow:
    """One completion to learn from: the very ids that were read and sampled.

    Log-probs have one number for each id of the completion.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    advantage: float
    sampling_logprobs: list[float] | None = None
    """As drawn; those of training when not known."""
    old_logprobs: list[float] | None = None
    """Of the policy that sampled; without them this very policy did, and the ratio is 1."""
    ref_logprobs: list[float] | None = None
    """Of the reference, where there is one."""


MicroBatch = Sequence[TrainingRow]


class RowTensors(NamedTuple):
    """A micro-batch; `mask_B_T` is 1 where the target is a token of the completion."""

    inputs_B_T: mx.array
    targets_B_T: mx.array
    mask_B_T: mx.array
    advantages_B: mx.array
    sampling_logprobs_B_T: mx.array | None
    old_logprobs_B_T: mx.array | None
    ref_logprobs_B_T: mx.array | None
    places_N: mx.array
    """Where the mask is 1, as positions in the flattened [B, T]."""
    lengths: tuple[int, ...]
    """Completion tokens of each row; they add up to N."""

    @property
    def num_tokens(self) -> int:
        """Completion tokens N of all rows."""
        return self.places_N.size


def to_tensors(rows: MicroBatch) -> RowTensors:
    """Pads `rows` to the longest; log-probs are there when every row has them."""
    length = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    ids = mx.array(
        [_padded(row.prompt_ids + row.completion_ids, length) for row in rows], dtype=mx.int32
    )
    return RowTensors(
        inputs_B_T=ids[:, :-1],
        targets_B_T=ids[:, 1:],
        mask_B_T=_placed(rows, [[1.0] * len(row.completion_ids) for row in rows], length),
        advantages_B=mx.array([row.advantage for row in rows], dtype=mx.float32),
        sampling_logprobs_B_T=_optional(rows, [row.sampling_logprobs for row in rows], length),
        old_logprobs_B_T=_optional(rows, [row.old_logprobs for row in rows], length),
        ref_logprobs_B_T=_optional(rows, [row.ref_logprobs for row in rows], length),
        places_N=mx.array(_places(rows, length - 1), dtype=mx.int32),
        lengths=tuple(len(row.completion_ids) for row in rows),
    )


def completion_values(values_B_T: mx.array, rows: MicroBatch) -> list[list[float]]:
    """The numbers at each row's completion, as plain lists."""
    listed = cast("list[list[float]]", values_B_T.tolist())
    starts = [len(row.prompt_ids) - 1 for row in rows]
    return [
        line[start : start + len(row.completion_ids)]
        for line, start, row in zip(listed, starts, rows, strict=True)
    ]


def _places(rows: MicroBatch, width: int) -> list[int]:
    starts = [index * width + len(row.prompt_ids) - 1 for index, row in enumerate(rows)]
    pairs = zip(starts, rows, strict=True)
    return [start + place for start, row in pairs for place in range(len(row.completion_ids))]


def _padded(ids: list[int], length: int) -> list[int]:
    return ids + [0] * (length - len(ids))


def _placed(rows: MicroBatch, values: Sequence[Sequence[float]], length: int) -> mx.array:
    """[B, T] with each row's values on its completion and 0 elsewhere."""
    lines = []
    for row, numbers in zip(rows, values, strict=True):
        start = [0.0] * (len(row.prompt_ids) - 1)
        line = [*start, *numbers]
        lines.append(line + [0.0] * (length - 1 - len(line)))
    return mx.array(lines, dtype=mx.float32)


def _optional(
    rows: MicroBatch, values: Sequence[Sequence[float] | None], length: int
) -> mx.array | None:
    known = [numbers for numbers in values if numbers is not None]
    return _placed(rows, known, length) if len(known) == len(rows) else None
