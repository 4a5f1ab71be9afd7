"""From scored groups to what the steps of a window train on: advantages, mini-batches, rows."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from grpo_protocol.config import GRPOConfig
from grpo_trainer.advantages import advantages_of
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rewards.types import RewardScores
from grpo_trainer.rollout import Completion
from grpo_trainer.rollout_batch import ScoredGroup
from grpo_trainer.training_rows import TrainingRow


def with_advantages(
    groups: Sequence[ScoredGroup], weights: Sequence[float], config: GRPOConfig
) -> list[ScoredGroup]:
    """`groups` with the advantage of each completion, None for those that are left out."""
    if not groups:
        return []
    left_out = [_is_left_out(completion, config) for g in groups for completion in g.completions]
    degenerate = [config.degenerate_filter and out for out in left_out]
    names = list(groups[0].reward_parts)

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


def without_advantages(groups: Sequence[ScoredGroup]) -> list[ScoredGroup]:
    """`groups` as those that were replaced for having no spread: they take part in no update."""
    return [
        replace(group, has_spread=False, advantages=[None] * len(group.completions))
        for group in groups
    ]


def dealt(groups: Sequence[ScoredGroup], planned: Sequence[int]) -> list[list[ScoredGroup]]:
    """`groups` in order over mini-batches of `planned` sizes, or evenly when some are missing."""
    if len(groups) < sum(planned):
        return dealt_evenly(groups, len(planned))
    return _cut(groups, planned)


def dealt_evenly(groups: Sequence[ScoredGroup], num_parts: int) -> list[list[ScoredGroup]]:
    """`groups` in order over so many parts, the first ones the larger."""
    size, larger = divmod(len(groups), num_parts)
    return _cut(groups, [size + (index < larger) for index in range(num_parts)])


def _cut(groups: Sequence[ScoredGroup], sizes: Sequence[int]) -> list[list[ScoredGroup]]:
    ends = list(accumulate(sizes))
    return [list(groups[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


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
        return completion.is_at_limit
    return config.mask_truncated_completions and completion.is_truncated
