"""Describes a step for people and for the record: its completions, and its metrics.

Metric names are TRL's; the mean and spread of rewards are over all rows of the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from grpo_protocol.messages import Generation, Step
from grpo_trainer.advantages import Advantages
from grpo_trainer.completion_text import ParsedCompletion, parse_completion
from grpo_trainer.dataset import expected_answer
from grpo_trainer.learner import TrainingRow, UpdateResult
from grpo_trainer.plan import PlannedStep
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rewards.types import RewardScores
from grpo_trainer.rollout import Completion
from grpo_trainer.summary import known_mean, known_std, mean_of, sample_std


@dataclass(frozen=True)
class StepTimes:
    """Seconds spent in the parts of a step."""

    generation: float
    reward: float
    training: float

    @property
    def total(self) -> float:
        return self.generation + self.reward + self.training


@dataclass(frozen=True)
class SampledStep:
    """Everything that is known of a step's completions once they are scored. B rows."""

    plan: PlannedStep
    prompts: Sequence[EncodedPrompt]
    """One for each group."""
    group_size: int
    completions: Sequence[Completion]
    texts: Sequence[str]
    scores: RewardScores
    advantages: Advantages

    def training_rows(self) -> list[TrainingRow]:
        """What the update learns from."""
        return [
            TrainingRow(
                self.prompts[index // self.group_size].token_ids,
                completion.token_ids,
                self.advantages.values[index],
            )
            for index, completion in enumerate(self.completions)
        ]

    def parsed(self) -> list[ParsedCompletion]:
        """Texts split into answer, thinking and tool calls."""
        return [parse_completion(text) for text in self.texts]


def describe_generations(
    sampled: SampledStep, parsed: Sequence[ParsedCompletion]
) -> list[Generation]:
    """One event for each completion, in the order of sampling."""
    generations = []
    for index, completion in enumerate(sampled.completions):
        prompt_index, group_index = divmod(index, sampled.group_size)
        example = sampled.prompts[prompt_index].example
        generations.append(
            Generation(
                index=index,
                prompt=example.question,
                completion=sampled.texts[index],
                reward=sampled.scores.total[index],
                tokens=len(completion.token_ids),
                reward_details={
                    name: rewards[index] for name, rewards in sampled.scores.per_function.items()
                },
                step=sampled.plan.number,
                prompt_index=prompt_index,
                group_index=group_index,
                advantage=sampled.advantages.values[index],
                expected_answer=expected_answer(example),
                finish_reason=completion.finish_reason,
                thinking=parsed[index].thinking,
                tool_calls=parsed[index].tool_calls,
                token_ids=completion.token_ids,
            )
        )
    return generations


def describe_step(
    sampled: SampledStep,
    update: UpdateResult,
    times: StepTimes,
    learning_rate: float,
    tokens_seen: int,
) -> Step:
    """The step's event; `tokens_seen` are prompt and completion tokens of the run so far."""
    rewards = sampled.scores.total
    advantages = sampled.advantages.values
    return Step(
        step=sampled.plan.number,
        loss=update.loss,
        total_tokens=sum(len(c.token_ids) for c in sampled.completions),
        mean_reward=known_mean(rewards),
        std_reward=known_std(rewards),
        mean_advantage=mean_of(advantages),
        std_advantage=sample_std(advantages),
        generation_time_ms=times.generation * 1000,
        reward_time_ms=times.reward * 1000,
        training_time_ms=times.training * 1000,
        peak_memory_mb=mx.get_peak_memory() / 1e6,
        active_memory_mb=mx.get_active_memory() / 1e6,
        epoch=sampled.plan.epoch + 1,
        step_in_epoch=sampled.plan.in_epoch,
        gradient_norm=update.gradient_norm,
        learning_rate=learning_rate,
        gradients_applied=update.applied,
        metrics=_metrics(sampled, update, times, tokens_seen),
    )


def _metrics(
    sampled: SampledStep, update: UpdateResult, times: StepTimes, tokens_seen: int
) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {
        "num_tokens": float(tokens_seen),
        "step_time": times.total,
        "frac_reward_zero_std": sampled.advantages.frac_zero_std,
        "advantages/min": min(sampled.advantages.values),
        "advantages/max": max(sampled.advantages.values),
        "clip_ratio/low_mean": update.clip_ratio_low,
        "clip_ratio/high_mean": update.clip_ratio_high,
        "clip_ratio/region_mean": update.clip_ratio_low + update.clip_ratio_high,
        **_length_metrics(sampled.completions),
    }
    if update.entropy is not None:
        metrics["entropy"] = update.entropy
    for name, scores in sampled.scores.per_function.items():
        metrics[f"rewards/{name}/mean"] = known_mean(scores)
        metrics[f"rewards/{name}/std"] = known_std(scores)
    return metrics


def _length_metrics(completions: Sequence[Completion]) -> dict[str, float | None]:
    lengths = [len(completion.token_ids) for completion in completions]
    ended = [len(c.token_ids) for c in completions if c.finish_reason == "stop"] or [0]
    return {
        "completions/mean_length": mean_of(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/mean_terminated_length": mean_of(ended),
        "completions/min_terminated_length": float(min(ended)),
        "completions/max_terminated_length": float(max(ended)),
        "completions/clipped_ratio": mean_of(
            [float(c.finish_reason != "stop") for c in completions]
        ),
    }


def choose_samples(
    generations: Sequence[Generation], mode: str, draw: Sequence[int]
) -> list[Generation]:
    """The completions that the dashboard is sent: all, best and worst of the step, or two drawn.

    The first of equals is best or worst. `draw` orders the rows at random.
    """
    if mode == "all" or not generations:
        return list(generations)
    if mode == "random":
        return [generations[index] for index in sorted(draw[:2])]
    ranked = [g for g in generations if g.reward is not None] or list(generations[:1])
    best = max(ranked, key=lambda g: g.reward or 0.0)
    worst = min(ranked, key=lambda g: g.reward or 0.0)
    return [best] if best is worst else [best, worst]
