"""Groups of completions with rewards that a test chooses, without a model."""

from collections.abc import Sequence

from grpo_protocol.messages import FinishReason
from grpo_trainer.dataset import Example
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rollout import Completion
from grpo_trainer.rollout_batch import MiniBatch, RolloutBatch, ScoredGroup

Rewards = Sequence[float | None]
ENDINGS: dict[str, FinishReason] = {"s": "stop", "l": "length", "r": "repetition"}


def prompts(count: int) -> list[EncodedPrompt]:
    """Prompt n has n + 1 tokens, and is row n + 1 of its data."""
    return [
        EncodedPrompt(Example(f"prompt {n}", {}, f"row {n + 1}"), [n] * (n + 1))
        for n in range(count)
    ]


def group(
    prompt: int,
    rewards: Rewards,
    endings: str = "",
    lengths: Sequence[int] = (),
    parts: dict[str, list[float | None]] | None = None,
) -> ScoredGroup:
    """A group whose tokens tell where they come from; `endings` has s, l or r for each row."""
    size = len(rewards)
    completions = [
        Completion(
            token_ids=[100 * prompt + row] * (lengths[row] if lengths else row + 1),
            finish_reason=ENDINGS[endings[row] if endings else "s"],
            logprobs=[-0.5] * (lengths[row] if lengths else row + 1),
        )
        for row in range(size)
    ]
    return ScoredGroup(
        prompt=prompt,
        completions=completions,
        texts=[f"text {prompt}.{row}" for row in range(size)],
        rewards=list(rewards),
        reward_parts=parts or {"score": list(rewards)},
    )


def rollout_batch(*mini_batches: MiniBatch, rounds: int = 1) -> RolloutBatch:
    """What was sampled before step 7 at temperature 0.8."""
    return RolloutBatch(7, 0.8, list(mini_batches), rounds)
