"""One optimizer step of the project on given models and completions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx.utils import tree_unflatten

from grpo_protocol import GRPOConfig
from grpo_trainer.dataset import Example
from grpo_trainer.learner import Learner
from grpo_trainer.policy import load_policy
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rewards.types import combine
from grpo_trainer.rollout_batch import ScoredGroup
from grpo_trainer.tensor_file import read_tensors
from grpo_trainer.training_data import micro_batches, with_advantages
from grpo_trainer.training_rows import TrainingRow
from grpo_trainer.trees import leaves, number
from grpo_trainer.update_metrics import describe_update
from learners import copy_of

from .step_result import StepResult
from .trl_cases import GROUP_SIZE, PROMPTS, REWARD_WEIGHTS, Case
from .trl_inputs import Models, Rollouts


def our_step(case: Case, models: Models, rollouts: Rollouts) -> StepResult:
    """Log-probs of sampler and reference first, then loss and gradients at the policy's weights."""
    start = models.sampler if case.off_policy else models.policy
    config = GRPOConfig(model=str(start), **case.our_settings())
    policy = load_policy(config, lambda message: None)
    learner = Learner(policy, config)
    if learner.reference is not None:
        learner.reference.restore(_weights(policy.weights, models.reference))
    groups = with_advantages(_groups(rollouts), REWARD_WEIGHTS, config)
    prompts = [
        EncodedPrompt(Example("", {}, ""), rollouts.prompt_ids[row])
        for row in range(0, PROMPTS * GROUP_SIZE, GROUP_SIZE)
    ]
    of_step = groups[: PROMPTS * case.accumulation // case.micro_batches]
    batches = [
        learner.with_logprobs(_as_known(batch, case), config)
        for batch in micro_batches(of_step, prompts, config)
    ]
    policy.adopt(_weights(policy.weights, models.policy))
    found = learner.gradient(batches, config)
    return StepResult(
        loss=number(found.loss),
        gradients=copy_of(found.gradients),
        advantages=[advantage for group in groups for advantage in group.advantages],
        metrics={n: value for n, value in describe_update(found.sums).items() if value is not None},
        micro_batches=len(batches),
    )


def _as_known(batch: list[TrainingRow], case: Case) -> list[TrainingRow]:
    """TRL knows the sampler's log-probs only where it corrects for them."""
    if case.corrects_mismatch:
        return batch
    return [replace(row, sampling_logprobs=None) for row in batch]


def _groups(rollouts: Rollouts) -> list[ScoredGroup]:
    rewards = combine(rollouts.rewards, REWARD_WEIGHTS).total
    groups = []
    for prompt in range(PROMPTS):
        rows = slice(prompt * GROUP_SIZE, (prompt + 1) * GROUP_SIZE)
        groups.append(
            ScoredGroup(
                prompt=prompt,
                completions=rollouts.completions[rows],
                texts=[""] * GROUP_SIZE,
                rewards=rewards[rows],
                reward_parts={name: column[rows] for name, column in rollouts.rewards.items()},
            )
        )
    return groups


def _weights(like: Any, folder: Path) -> Any:
    """The weights of `folder`, arranged as the tree `like`."""
    weights = read_tensors(folder / "model.safetensors")
    return tree_unflatten([(name, weights[name]) for name, _ in leaves(like)])
