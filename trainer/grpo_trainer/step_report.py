"""Describes a step for people and for the record: its completions, and its metrics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from grpo_protocol.messages import Generation, Step
from grpo_trainer.completion_text import parse_completion
from grpo_trainer.dataset import expected_answer
from grpo_trainer.learner import UpdateResult
from grpo_trainer.plan import PlannedStep
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rollout_batch import MiniBatch, RolloutBatch
from grpo_trainer.rollout_metrics import Metrics, describe_rollouts
from grpo_trainer.summary import known_mean, known_std


@dataclass(frozen=True)
class StepTimes:
    """Seconds spent in the parts of a step."""

    generation: float
    reward: float
    training: float

    @property
    def total(self) -> float:
        return self.generation + self.reward + self.training


def describe_generations(
    mini_batch: MiniBatch, prompts: Sequence[EncodedPrompt], step: int
) -> tuple[list[Generation], list[str]]:
    """An event for each completion, in the order of sampling, and the text of its answer alone."""
    generations: list[Generation] = []
    answers: list[str] = []
    for prompt_index, group in enumerate(mini_batch.all_groups):
        example = prompts[group.prompt].example
        for group_index, completion in enumerate(group.completions):
            parsed = parse_completion(group.texts[group_index])
            answers.append(parsed.text)
            generations.append(
                Generation(
                    index=len(generations),
                    prompt=example.question,
                    completion=group.texts[group_index],
                    reward=group.rewards[group_index],
                    tokens=len(completion.token_ids),
                    reward_details={
                        name: rewards[group_index] for name, rewards in group.reward_parts.items()
                    },
                    step=step,
                    prompt_index=prompt_index,
                    group_index=group_index,
                    advantage=group.advantages[group_index],
                    expected_answer=expected_answer(example),
                    finish_reason=completion.finish_reason,
                    thinking=parsed.thinking,
                    tool_calls=parsed.tool_calls,
                    token_ids=completion.token_ids,
                )
            )
    return generations, answers


def describe_step(
    planned: PlannedStep,
    batch: RolloutBatch,
    update: UpdateResult,
    times: StepTimes,
    learning_rate: float,
    tokens_seen: int,
) -> Step:
    """The step's event; `tokens_seen` are prompt and completion tokens of the run so far.

    Its own tokens are those of the completions that are told with it: a step that trains on known
    rollouts has sampled none.
    """
    mini_batch = batch.mini_batches[planned.mini_batch]
    rewards = [reward for group in mini_batch.all_groups for reward in group.rewards]
    advantages = mini_batch.trained_advantages
    told = mini_batch.all_groups if planned.iteration == 0 else []
    metrics = describe_rollouts(batch, mini_batch) | update.metrics
    if planned.window.is_reused:
        metrics["rollout/age"] = float(planned.number - planned.window.first_step)
    return Step(
        step=planned.number,
        loss=update.loss,
        total_tokens=sum(len(item.token_ids) for group in told for item in group.completions),
        mean_reward=known_mean(rewards),
        std_reward=known_std(rewards),
        mean_advantage=known_mean(advantages),
        std_advantage=known_std(advantages),
        generation_time_ms=times.generation * 1000,
        reward_time_ms=times.reward * 1000,
        training_time_ms=times.training * 1000,
        peak_memory_mb=mx.get_peak_memory() / 1e6,
        active_memory_mb=mx.get_active_memory() / 1e6,
        epoch=planned.epoch + 1,
        step_in_epoch=planned.in_epoch,
        gradient_norm=update.gradient_norm,
        learning_rate=learning_rate,
        gradients_applied=update.applied,
        metrics={"num_tokens": float(tokens_seen), "step_time": times.total, **_finite(metrics)},
    )


def _finite(metrics: Metrics) -> Metrics:
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in metrics.items()
    }
