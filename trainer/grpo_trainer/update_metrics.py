"""What an update did, under TRL's metric names, from the sums over its rows."""

from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from grpo_trainer.objective.tokens import Sums

_MEANS = {
    "clip_ratio/low": "clip_ratio/low_mean",
    "clip_ratio/high": "clip_ratio/high_mean",
    "clip_ratio/region": "clip_ratio/region_mean",
    "cispo_clip_ratio": "cispo_clip_ratio",
    "vespo/phi_seq": "vespo/phi_seq_mean",
    "kl": "kl",
    "entropy": "entropy",
    "ratio": "ratio/mean",
    "mismatch": "sampling/sampling_logp_difference/mean",
    "correction": "sampling/importance_sampling_ratio/mean",
}
_EXTREMES = {
    "clip_ratio/low": ("min", "clip_ratio/low_min"),
    "clip_ratio/high": ("max", "clip_ratio/high_max"),
    "mismatch_max": ("max", "sampling/sampling_logp_difference/max"),
    "correction_min": ("min", "sampling/importance_sampling_ratio/min"),
    "correction_max": ("max", "sampling/importance_sampling_ratio/max"),
    "ratio_deviation": ("max", "ratio/max_deviation"),
}

RowArrays = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Sums and counts of each row of the step."""


def joined(shares: Sequence[Mapping[str, Sums]]) -> RowArrays:
    """The rows of all micro-batches, in float64."""
    return {
        name: (
            np.concatenate([np.asarray(share[name].values_B, np.float64) for share in shares]),
            np.concatenate([np.asarray(share[name].counts_B, np.float64) for share in shares]),
        )
        for name in shares[0]
    }


def token_mean(rows: RowArrays, name: str) -> float:
    """Mean over all tokens, or over rows where a row has one value; 0 without any."""
    values, counts = rows[name]
    return float(values.sum() / max(counts.sum(), 1.0))


def describe_update(rows: RowArrays) -> dict[str, float | None]:
    """Token means, and the extremes of the means of the rows that have any token."""
    metrics: dict[str, float | None] = {
        metric: token_mean(rows, name) for name, metric in _MEANS.items() if name in rows
    }
    for name, (kind, metric) in _EXTREMES.items():
        if name in rows:
            values, counts = rows[name]
            means = values[counts > 0] / counts[counts > 0]
            if means.size:
                metrics[metric] = float(means.min() if kind == "min" else means.max())
    return metrics


def evaluated(share: Mapping[str, Sums]) -> Mapping[str, Sums]:
    """`share` with every array computed, so that no graph is kept alive."""
    mx.eval([list(sums) for sums in share.values()])
    return share
