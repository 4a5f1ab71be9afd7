"""What an update did, under TRL's metric names, from the sums over its rows."""

from grpo_trainer.objective.row_sums import RowSums

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


def describe_update(sums: RowSums) -> dict[str, float | None]:
    """Token means, and the extremes of the means of the rows that have any token."""
    metrics: dict[str, float | None] = {
        metric: sums.mean(name) for name, metric in _MEANS.items() if name in sums
    }
    for name, (kind, metric) in _EXTREMES.items():
        if name in sums and (means := sums.row_means(name)).size:
            metrics[metric] = float(means.min() if kind == "min" else means.max())
    return metrics
