"""From sampled ids to what reward functions see."""

from collections.abc import Sequence
from typing import Any

from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rollout import Completion


def batch_for_rewards(
    prompts: Sequence[EncodedPrompt],
    group_size: int,
    completions: Sequence[Completion],
    tokenizer: Any,
    step: int,
) -> RewardBatch:
    """The rows of a step: prompt and columns repeated for each of the `group_size` completions."""
    rows = [prompt.example for prompt in prompts for _ in range(group_size)]
    names = {name for example in rows for name in example.columns}
    return RewardBatch(
        prompts=[example.raw_prompt for example in rows],
        completions=[completion_text(c, tokenizer) for c in completions],
        completion_ids=[c.token_ids for c in completions],
        columns={name: [row.columns.get(name) for row in rows] for name in sorted(names)},
        step=step,
        finish_reasons=[c.finish_reason for c in completions],
    )


def completion_text(completion: Completion, tokenizer: Any) -> str:
    """What the model wrote, without what ended it and without special tokens.

    Ids that are no text become replacement marks. A row cut at its limit, or for repeating itself,
    keeps all its text.
    """
    ids = completion.token_ids
    if completion.stop_text is not None:
        return _text_before(completion.stop_text, ids, tokenizer)
    # What ends a row need not be among the tokenizer's special tokens.
    written = ids[:-1] if completion.finish_reason == "stop" else ids
    return _visible(written, tokenizer)


def _text_before(stop_text: str, ids: list[int], tokenizer: Any) -> str:
    """The text of ids up to a stop string, which may begin inside of a token."""
    whole = str(tokenizer.decode(ids, skip_special_tokens=False))
    before = whole.partition(stop_text)[0]
    count = len(ids) - 1
    # Only whole tokens can be told to be special or not: the last one may count in part.
    while not before.startswith(
        start := str(tokenizer.decode(ids[:count], skip_special_tokens=False))
    ):
        count -= 1
    return _visible(ids[:count], tokenizer) + before[len(start) :]


def _visible(ids: list[int], tokenizer: Any) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))
