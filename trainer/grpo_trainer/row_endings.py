"""Decides after every token whether a row of a rollout ends there, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import FinishReason

# Decoders write it for bytes that are no whole character.
REPLACEMENT_MARK = "\ufffd"
# A character of UTF-8 has at most four bytes, so its first is at most three before any other.
_CONTINUATION_BYTES = 3


@dataclass(frozen=True)
class Ending:
    """Why a row ended."""

    reason: FinishReason
    stop_text: str | None = None
    """The stop string that ended it."""


@dataclass(frozen=True)
class Endings:
    """Everything that ends a row before its limit: end tokens, stop strings, and repetition."""

    eos_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    decode: Callable[[list[int]], str] = lambda ids: ""
    """Text of token ids, special tokens included."""
    max_consecutive_tokens: int = 0
    """Equal tokens in a row that end it; 0 for any number."""
    max_ngram_repeats: int = 0
    """Occurrences in a row of a pattern of unequal tokens that end it; 0 for any number."""
    ngram_size: int = 2
    """Tokens of the longest such pattern; the shortest has 2."""

    @classmethod
    def of(cls, config: GRPOConfig, tokenizer: Any) -> "Endings":
        """As the settings of the same names say, with every end token of `tokenizer`."""
        return cls(
            eos_ids=frozenset(tokenizer.eos_token_ids),
            stop=tuple(config.stop),
            decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
            max_consecutive_tokens=config.max_consecutive_tokens,
            max_ngram_repeats=config.max_ngram_repeats,
            ngram_size=config.ngram_size,
        )

    def after(self, token_ids: list[int]) -> Ending | None:
        """The ending, if the last of a row's sampled ids is one; call it once for every token."""
        if token_ids[-1] in self.eos_ids:
            return Ending("stop")
        if self.stop and (text := self._stop_text(token_ids)) is not None:
            return Ending("stop", text)
        if self._repeats(token_ids):
            return Ending("repetition")
        return None

    def _stop_text(self, token_ids: list[int]) -> str | None:
        """The stop string that comes first in the end of the text."""
        tail = self._tail(token_ids)
        found = [(place, text) for text in self.stop if (place := tail.find(text)) >= 0]
        return min(found, key=lambda item: item[0])[1] if found else None

    def _tail(self, token_ids: list[int]) -> str:
        """Text of the last tokens, longer than every stop string if the row is.

        One that does not start with a whole character is read from further back: some decoders
        would give up the whole characters after it too.
        """
        start = max(0, len(token_ids) - self._tail_tokens)
        text = self.decode(token_ids[start:])
        shifts = 0
        while start > 0:
            if len(text) <= self._longest:
                start = max(0, start - self._tail_tokens)
            elif text[0] == REPLACEMENT_MARK and shifts < _CONTINUATION_BYTES:
                start, shifts = start - 1, shifts + 1
            else:
                break
            text = self.decode(token_ids[start:])
        return text

    @cached_property
    def _longest(self) -> int:
        return max(len(text) for text in self.stop)

    @cached_property
    def _tail_tokens(self) -> int:
        """A token may be as short as one byte. One more is left of them: decoders may strip the
        space that a text begins with."""
        return max(len(text.encode()) for text in self.stop) + 1

    @cached_property
    def _periods(self) -> list[tuple[int, int]]:
        """(p, n): a row ends when its last n tokens repeat with period p."""
        periods = []
        if self.max_consecutive_tokens:
            periods.append((1, self.max_consecutive_tokens))
        if self.max_ngram_repeats:
            sizes = range(2, self.ngram_size + 1)
            periods += [(size, size * self.max_ngram_repeats) for size in sizes]
        return periods

    def _repeats(self, token_ids: list[int]) -> bool:
        # Every row comes by after every token: nearly all leave at the first comparison.
        for period, length in self._periods:
            if len(token_ids) >= length and (
                length <= period or token_ids[-1] == token_ids[-1 - period]
            ):
                tail = token_ids[-length:]
                if tail[period:] == tail[:-period] and (period == 1 or len(set(tail)) > 1):
                    return True
        return False
