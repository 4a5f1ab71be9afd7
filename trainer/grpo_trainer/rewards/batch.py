"""What a reward function is given: the rows of one step, under TRL's keywords."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

RawPrompt: TypeAlias = str | list[dict[str, str]]
"""A prompt in the data's own form: text, or a list of messages with role and content."""

KEYWORDS = ("prompts", "completions", "completion_ids", "finish_reasons", "trainer_state")
"""Keywords that every reward function can declare, besides the columns of the dataset."""

RESERVED_COLUMNS = frozenset({*KEYWORDS, "log_extra", "log_metric", "environments", "self"})
"""Names that a column cannot have: ours, TRL's other keywords, and what binds a method."""


@dataclass(frozen=True)
class TrainerState:
    """The part of the trainer's state that reward functions see, under TRL's name."""

    global_step: int
    """Optimizer steps done so far: 0 while the first is taken."""


@dataclass(frozen=True)
class RewardBatch:
    """The completions of one step, row by row; all lists have one length B."""

    prompts: list[RawPrompt]
    completions: list[str]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]
    """Every column of the dataset but the prompt."""
    step: int
    """Number of the step being taken, from 1."""
    finish_reasons: list[str]

    def __post_init__(self) -> None:
        lengths = {
            "prompts": len(self.prompts),
            "completions": len(self.completions),
            "completion_ids": len(self.completion_ids),
            "finish_reasons": len(self.finish_reasons),
            **{f"column {name}": len(values) for name, values in self.columns.items()},
        }
        if len(set(lengths.values())) > 1:
            raise ValueError(f"rows of a reward batch do not line up: {lengths}")

    @property
    def size(self) -> int:
        """The number B of rows."""
        return len(self.completions)

    def keywords(self) -> dict[str, Any]:
        """Arguments for one function, in lists of its own: it may change them."""
        return {
            **{name: list(values) for name, values in self.columns.items()},
            "prompts": [_copied(prompt) for prompt in self.prompts],
            "completions": [
                _in_form_of(prompt, text)
                for prompt, text in zip(self.prompts, self.completions, strict=True)
            ],
            "completion_ids": [list(ids) for ids in self.completion_ids],
            "finish_reasons": list(self.finish_reasons),
            "trainer_state": TrainerState(max(self.step - 1, 0)),
        }


def completion_texts(completions: Sequence[str | Sequence[Mapping[str, str]]]) -> list[str]:
    """The texts of `completions`, whether they are plain or lists of one assistant message."""
    return [item if isinstance(item, str) else item[0]["content"] for item in completions]


def _copied(prompt: RawPrompt) -> RawPrompt:
    return prompt if isinstance(prompt, str) else [dict(message) for message in prompt]


def _in_form_of(prompt: RawPrompt, text: str) -> str | list[dict[str, str]]:
    """TRL's rule: the completion of a text is a text, that of messages is a list of one message."""
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
