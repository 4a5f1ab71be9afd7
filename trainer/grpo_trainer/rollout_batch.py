"""What one sampling phase gave, ready for the steps that it feeds.

Plain data throughout: a checkpoint between these steps stores it, because the weights that sampled
it are gone by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rollout import Completion
from grpo_trainer.training_rows import TrainingRow


@dataclass(frozen=True)
class ScoredGroup:
    """The completions of one prompt, and what they are worth. G completions."""

    prompt: int
    """Row of the dataset."""
    completions: list[Completion]
    texts: list[str]
    """What the reward functions saw."""
    rewards: list[float | None]
    """[G]: weighted sums; None where no function gave a number."""
    reward_parts: dict[str, list[float | None]]
    """[G] for each function, before weights."""
    has_spread: bool = True
    """Whether the completions differ in reward."""
    advantages: list[float | None] = field(default_factory=list)
    """[G]; None where a completion takes no part in the update."""


@dataclass(frozen=True)
class MiniBatch:
    """What one optimizer step trains on."""

    groups: list[ScoredGroup]
    micro_batches: list[list[TrainingRow]]
    discarded: list[ScoredGroup] = field(default_factory=list)
    """Sampled too, but replaced because they could teach nothing."""

    @property
    def all_groups(self) -> list[ScoredGroup]:
        """In the order in which they are told and recorded."""
        return [*self.groups, *self.discarded]

    @property
    def trained_advantages(self) -> list[float]:
        """Of the completions that take part in the update."""
        values = (value for group in self.groups for value in group.advantages)
        return [value for value in values if value is not None]

    def num_tokens(self, prompts: Sequence[EncodedPrompt]) -> int:
        """Prompt and completion tokens of everything that was sampled for it."""
        return sum(
            len(prompts[group.prompt].token_ids) + len(completion.token_ids)
            for group in self.all_groups
            for completion in group.completions
        )


@dataclass(frozen=True)
class RolloutBatch:
    """Everything that one sampling phase gave, dealt out to the steps that train on it.

    In PPO's words: a rollout batch has mini-batches, one an optimizer step, and each of these has
    micro-batches, whose gradients are accumulated.
    """

    first_step: int
    """Number of the step before which it was sampled."""
    temperature: float
    """At which it was sampled; training scores at the same, whatever is set meanwhile."""
    mini_batches: list[MiniBatch]
    sampling_rounds: int = 1
    """How often prompts were sampled to fill it."""
