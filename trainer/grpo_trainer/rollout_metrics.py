"""What is known of a share before the update, under TRL's metric names.

The mean and spread of rewards are over all completions that the step trains on or left out; groups
that dynamic sampling replaced count in `frac_reward_zero_std` and in metrics of their own.
"""

from collections.abc import Iterable, Sequence

from grpo_trainer.rollout import Completion
from grpo_trainer.rollout_window import RolloutWindow, Share
from grpo_trainer.summary import known_mean, known_std

Metrics = dict[str, float | None]


def describe_rollouts(window: RolloutWindow, share: Share) -> Metrics:
    """Rewards, advantages, lengths and groups of `share`."""
    rewards = [reward for group in share.groups for reward in group.rewards]
    advantages = trained_advantages(share)
    all_groups = share.all_groups
    metrics: Metrics = {
        "reward": known_mean(rewards),
        "reward_std": known_std(rewards),
        "reward_coverage": _coverage(rewards),
        "frac_reward_zero_std": known_mean([float(not group.has_spread) for group in all_groups]),
        "advantages/mean": known_mean(advantages),
        "advantages/min": min(advantages, default=None),
        "advantages/max": max(advantages, default=None),
        **_length_metrics([item for group in share.groups for item in group.completions]),
    }
    trained = sum(len(batch) for batch in share.micro_batches)
    metrics["completions/trained_ratio"] = trained / len(rewards) if rewards else None
    if window.sampling_rounds > 1 or any(other.discarded for other in window.shares):
        metrics["dynamic_sampling/rounds"] = float(window.sampling_rounds)
        metrics["dynamic_sampling/kept_groups"] = float(len(share.groups))
        metrics["dynamic_sampling/replaced_groups"] = float(len(share.discarded))
    for name in share.groups[0].reward_parts if share.groups else ():
        scores = [score for group in share.groups for score in group.reward_parts[name]]
        metrics[f"rewards/{name}/mean"] = known_mean(scores)
        metrics[f"rewards/{name}/std"] = known_std(scores)
        metrics[f"rewards/{name}/coverage"] = _coverage(scores)
    return metrics


def trained_advantages(share: Share) -> list[float]:
    """Of the completions that take part in the update."""
    values = (value for group in share.groups for value in group.advantages)
    return [value for value in values if value is not None]


def _coverage(scores: Iterable[float | None]) -> float | None:
    """Share of the completions that got a number."""
    return known_mean([float(score is not None) for score in scores])


def _length_metrics(completions: Sequence[Completion]) -> Metrics:
    lengths = [float(len(completion.token_ids)) for completion in completions]
    ended = [float(len(c.token_ids)) for c in completions if c.finish_reason == "stop"]
    if completions and not ended:
        ended = [0.0]  # as TRL has it
    return {
        "completions/mean_length": known_mean(lengths),
        "completions/min_length": min(lengths, default=None),
        "completions/max_length": max(lengths, default=None),
        "completions/mean_terminated_length": known_mean(ended),
        "completions/min_terminated_length": min(ended, default=None),
        "completions/max_terminated_length": max(ended, default=None),
        "completions/clipped_ratio": known_mean(
            [float(c.finish_reason != "stop") for c in completions]
        ),
    }
