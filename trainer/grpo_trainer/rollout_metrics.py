"""What is known of a mini-batch before the update, under TRL's metric names.

Rewards and lengths are over everything that was sampled: completions that the update leaves out
and groups that dynamic sampling discarded count too. Without them the curve of the reward would
hide what the policy already knows. What was kept has metrics of its own.
"""

from collections.abc import Iterable, Sequence

from grpo_trainer.rollout import Completion
from grpo_trainer.rollout_batch import MiniBatch, RolloutBatch
from grpo_trainer.summary import known_mean, known_std

Metrics = dict[str, float | None]


def describe_rollouts(batch: RolloutBatch, mini_batch: MiniBatch) -> Metrics:
    """Rewards, advantages, lengths and groups of `mini_batch`, which is one of `batch`."""
    sampled = mini_batch.all_groups
    rewards = [reward for group in sampled for reward in group.rewards]
    advantages = mini_batch.trained_advantages
    metrics: Metrics = {
        "reward": known_mean(rewards),
        "reward_std": known_std(rewards),
        "reward_coverage": _coverage(rewards),
        "frac_reward_zero_std": known_mean([float(not group.has_spread) for group in sampled]),
        "advantages/mean": known_mean(advantages),
        "advantages/min": min(advantages, default=None),
        "advantages/max": max(advantages, default=None),
        **_length_metrics([item for group in sampled for item in group.completions]),
    }
    trained = sum(len(rows) for rows in mini_batch.micro_batches)
    metrics["completions/trained_ratio"] = trained / len(rewards) if rewards else None
    if batch.sampling_rounds > 1 or any(other.discarded for other in batch.mini_batches):
        metrics["dynamic_sampling/rounds"] = float(batch.sampling_rounds)
        metrics["dynamic_sampling/kept_groups"] = float(len(mini_batch.groups))
        metrics["dynamic_sampling/discarded_groups"] = float(len(mini_batch.discarded))
        kept = [reward for group in mini_batch.groups for reward in group.rewards]
        metrics["dynamic_sampling/kept_reward"] = known_mean(kept)
    for name in sampled[0].reward_parts if sampled else ():
        scores = [score for group in sampled for score in group.reward_parts[name]]
        metrics[f"rewards/{name}/mean"] = known_mean(scores)
        metrics[f"rewards/{name}/std"] = known_std(scores)
        metrics[f"rewards/{name}/coverage"] = _coverage(scores)
    return metrics


def _coverage(scores: Iterable[float | None]) -> float | None:
    """Share of the completions that got a number."""
    return known_mean([float(score is not None) for score in scores])


def _length_metrics(completions: Sequence[Completion]) -> Metrics:
    lengths = [float(len(completion.token_ids)) for completion in completions]
    ended = [float(len(c.token_ids)) for c in completions if not c.is_truncated]
    if completions and not ended:
        ended = [0.0]  # as TRL has it
    return {
        "completions/mean_length": known_mean(lengths),
        "completions/min_length": min(lengths, default=None),
        "completions/max_length": max(lengths, default=None),
        "completions/mean_terminated_length": known_mean(ended),
        "completions/min_terminated_length": min(ended, default=None),
        "completions/max_terminated_length": max(ended, default=None),
        "completions/clipped_ratio": known_mean([float(c.is_truncated) for c in completions]),
        "completions/repetition_ratio": known_mean([float(c.is_repetitive) for c in completions]),
    }
