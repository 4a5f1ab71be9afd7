"""From scored groups to what the steps of a window train on: advantages, rows, their log-probs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from grpo_protocol.config import GRPOConfig
from grpo_trainer.advantages import advantages_of
from grpo_trainer.group_sampling import GroupSampler, SampledGroups
from grpo_trainer.group_selection import is_degenerate, is_truncated
from grpo_trainer.learner import Learner
from grpo_trainer.plan import PlannedWindow
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rewards.types import RewardScores
from grpo_trainer.rollout import Completion
from grpo_trainer.rollout_window import RolloutWindow, ScoredGroup, Share
from grpo_trainer.training_rows import TrainingRow


def collect(
    sampler: GroupSampler,
    learner: Learner,
    planned: PlannedWindow,
    prompts: Sequence[EncodedPrompt],
    weights: Sequence[float],
    config: GRPOConfig,
) -> RolloutWindow:
    """Samples and prepares a window. Raises `Interrupted` when the run is to stop."""
    found = sampler.sample(planned, config)
    groups = compare(found.kept, weights, config)
    shares: list[Share] = []
    for members in _dealt(groups, [len(share) for share in planned.shares]):
        batches = micro_batches(members, prompts, config)
        batches = [learner.with_logprobs(batch, config) for batch in batches]
        shares.append(Share(members, batches, [] if shares else _untrained(found)))
    return RolloutWindow(planned.first_step, config.temperature, shares, found.rounds)


def compare(
    groups: Sequence[ScoredGroup], weights: Sequence[float], config: GRPOConfig
) -> list[ScoredGroup]:
    """`groups` with the advantage of each completion, None for those that are left out."""
    left_out = [_is_left_out(completion, config) for g in groups for completion in g.completions]
    degenerate = [config.degenerate_filter and out for out in left_out]
    names = list(groups[0].reward_parts) if groups else []

    def known(values: list[float | None]) -> list[float | None]:
        pairs = zip(values, degenerate, strict=True)
        return [None if drop else value for value, drop in pairs]

    scores = RewardScores(
        names=names,
        per_function={
            name: known([value for group in groups for value in group.reward_parts[name]])
            for name in names
        },
        total=known([value for group in groups for value in group.rewards]),
    )
    found = advantages_of(scores, weights, config)
    size = config.group_size
    return [
        replace(
            group,
            has_spread=not found.zero_spread[index],
            advantages=[
                None if left_out[row] else found.values[row]
                for row in range(index * size, (index + 1) * size)
            ],
        )
        for index, group in enumerate(groups)
    ]


def micro_batches(
    groups: Sequence[ScoredGroup], prompts: Sequence[EncodedPrompt], config: GRPOConfig
) -> list[list[TrainingRow]]:
    """The completions that take part in the update, `batch_size` groups' worth at a time."""
    rows = [
        TrainingRow(
            prompt_ids=prompts[group.prompt].token_ids,
            completion_ids=completion.token_ids,
            advantage=advantage,
            sampling_logprobs=completion.logprobs,
        )
        for group in groups
        for completion, advantage in zip(group.completions, group.advantages, strict=True)
        if advantage is not None
    ]
    size = config.batch_size * config.group_size
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _is_left_out(completion: Completion, config: GRPOConfig) -> bool:
    if config.degenerate_filter:
        return is_degenerate(
            completion.finish_reason, len(completion.token_ids), config.max_completion_length
        )
    return config.mask_truncated_completions and is_truncated(completion.finish_reason)


def _dealt(groups: Sequence[ScoredGroup], planned: Sequence[int]) -> list[list[ScoredGroup]]:
    """`groups` in order over the shares: as planned, or evenly when some are missing."""
    sizes = list(planned)
    if len(groups) < sum(sizes):
        size, larger = divmod(len(groups), len(sizes))
        sizes = [size + (index < larger) for index in range(len(sizes))]
    ends = list(accumulate(sizes))
    return [list(groups[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _untrained(found: SampledGroups) -> list[ScoredGroup]:
    return [
        replace(group, has_spread=False, advantages=[None] * len(group.completions))
        for group in found.discarded
    ]
