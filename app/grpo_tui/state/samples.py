"""The newest completions of a run, their groups, and which of them a sample mode shows."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from grpo_protocol.config import SampleDisplay
from grpo_protocol.messages import Generation
from grpo_tui.sanitize import clean, clean_line

MAX_SAMPLES: Final = 2000
MAX_CHARS: Final = 50_000_000
"""Of all texts together: a few very long completions must not cost gigabytes."""
_RANDOM_SHOWN: Final = 2


class GroupKey(NamedTuple):
    """The completions of one prompt in one step."""

    step: int
    prompt_index: int


@dataclass(frozen=True)
class SampleToolCall:
    """A call found in a completion, safe to show."""

    status: str
    name: str
    arguments: str
    raw_content: str
    error: str | None


@dataclass(frozen=True)
class Sample:
    """One completion, its texts safe to show and at most 100 000 characters long."""

    number: int
    """Counts every completion received, from 0."""
    step: int
    index: int
    """Position in the batch of its step."""
    prompt_index: int
    group_index: int
    prompt: str
    completion: str
    reward: float | None
    tokens: int
    rewards: dict[str, float | None] = field(default_factory=dict)
    """Reward of each function."""
    advantage: float | None = None
    expected_answer: str | None = None
    finish_reason: str | None = None
    thinking: str | None = None
    tool_calls: tuple[SampleToolCall, ...] = ()
    token_ids: tuple[int, ...] = ()

    @property
    def group(self) -> GroupKey:
        return GroupKey(self.step, self.prompt_index)

    @property
    def size(self) -> int:
        """About how much memory it takes, in characters."""
        return (
            len(self.prompt)
            + len(self.completion)
            + len(self.thinking or "")
            + len(self.token_ids) * 8
        )


def sample_of(event: Generation, number: int, step: int, group_size: int | None) -> Sample:
    """The completion in `event`; `step` and `group_size` stand in for what it does not tell."""
    size = group_size or 1
    return Sample(
        number=number,
        step=step,
        index=event.index,
        prompt_index=event.index // size if event.prompt_index is None else event.prompt_index,
        group_index=event.index % size if event.group_index is None else event.group_index,
        prompt=clean(event.prompt),
        completion=clean(event.completion),
        reward=event.reward,
        tokens=event.tokens,
        rewards={clean_line(name): value for name, value in event.reward_details.items()},
        advantage=event.advantage,
        expected_answer=_cleaned(event.expected_answer),
        finish_reason=None if event.finish_reason is None else clean_line(event.finish_reason),
        thinking=_cleaned(event.thinking),
        tool_calls=tuple(
            SampleToolCall(
                clean_line(call.status),
                clean_line(call.name),
                clean(call.arguments),
                clean(call.raw_content),
                _cleaned(call.error),
            )
            for call in event.tool_calls
        ),
        token_ids=tuple(event.token_ids),
    )


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean(text)


class SampleBook:
    """A bounded list of completions in the order of their arrival."""

    def __init__(self, max_samples: int = MAX_SAMPLES, max_chars: int = MAX_CHARS) -> None:
        self._max_samples = max_samples
        self._max_chars = max_chars
        self._held: deque[Sample] = deque()
        self._chars = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._held)

    @property
    def received(self) -> int:
        """Completions ever received; the next one gets this number."""
        return self._next

    def add(self, event: Generation, step: int, group_size: int | None) -> Sample:
        """Takes a completion; the oldest leave when there are too many."""
        sample = sample_of(event, self._next, step, group_size)
        self._next += 1
        self._held.append(sample)
        self._chars += sample.size
        while len(self._held) > 1 and (
            len(self._held) > self._max_samples or self._chars > self._max_chars
        ):
            self._chars -= self._held.popleft().size
        return sample

    def forget_from(self, step: int) -> None:
        """Drops the completions of `step` and later: the trainer does these steps again."""
        kept = [sample for sample in self._held if sample.step < step]
        if len(kept) < len(self._held):
            self._held = deque(kept)
            self._chars = sum(sample.size for sample in kept)

    def get(self, number: int) -> Sample | None:
        """The completion with this number, if it is still held."""
        return next((sample for sample in reversed(self._held) if sample.number == number), None)

    def group(self, key: GroupKey) -> list[Sample]:
        """Held completions of one prompt in one step, in the order of the group."""
        members = (sample for sample in self._held if sample.group == key)
        return sorted(members, key=lambda sample: sample.group_index)

    def steps(self) -> list[int]:
        """Steps of which completions are held, oldest first."""
        return list(dict.fromkeys(sample.step for sample in self._held))

    def of_step(self, step: int) -> list[Sample]:
        """Held completions of one step, in the order of the batch."""
        members = (sample for sample in self._held if sample.step == step)
        return sorted(members, key=lambda sample: sample.index)

    def shown(self, mode: SampleDisplay) -> list[Sample]:
        """Held completions that `mode` shows, newest step first, in the order of the batch."""
        by_step = [list(batch) for _, batch in groupby(self._held, key=lambda s: s.step)]
        return [sample for batch in reversed(by_step) for sample in choose(batch, mode)]


def choose(batch: list[Sample], mode: SampleDisplay) -> list[Sample]:
    """Which completions of one step `mode` shows.

    Best and worst are over the whole batch, the first wins ties, and one that is both is shown
    once. The random pick is the same each time for the same batch.
    """
    ordered = sorted(batch, key=lambda sample: sample.index)
    if mode == "all" or not ordered:
        return ordered
    if mode == "random":
        pick = random.Random(ordered[0].step).sample(ordered, min(_RANDOM_SHOWN, len(ordered)))
        return sorted(pick, key=lambda sample: sample.index)
    scored = [(sample.reward, sample) for sample in ordered if sample.reward is not None]
    if not scored:
        return ordered[:1]
    best = max(scored, key=lambda pair: pair[0])[1]
    worst = min(scored, key=lambda pair: pair[0])[1]
    return [best] if best is worst else [best, worst]
