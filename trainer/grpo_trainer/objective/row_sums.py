"""Sums over the tokens of each row, gathered over the micro-batches of a step."""

from collections import defaultdict
from collections.abc import Mapping

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from grpo_trainer.objective.tokens import Sums

Numbers = NDArray[np.float64]


class RowSums:
    """Named sums and counts of the rows of a step, in float64."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[Numbers]] = defaultdict(list)
        self._counts: defaultdict[str, list[Numbers]] = defaultdict(list)

    def add(self, micro_batch: Mapping[str, Sums]) -> None:
        """Takes over the rows of one more micro-batch, computed, so that no graph is kept alive."""
        mx.eval([list(sums) for sums in micro_batch.values()])
        for name, sums in micro_batch.items():
            self._values[name].append(np.asarray(sums.values_B, np.float64))
            self._counts[name].append(np.asarray(sums.counts_B, np.float64))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def mean(self, name: str) -> float:
        """Mean over all tokens, or over rows where a row has one value; 0 without any."""
        values, counts = self._rows(name)
        return float(values.sum() / max(counts.sum(), 1.0))

    def row_means(self, name: str) -> Numbers:
        """The mean of each row that has any token."""
        values, counts = self._rows(name)
        known: Numbers = values[counts > 0] / counts[counts > 0]
        return known

    def _rows(self, name: str) -> tuple[Numbers, Numbers]:
        return np.concatenate(self._values[name]), np.concatenate(self._counts[name])
