"""The distribution that tokens are drawn from, the same in rollouts and in training.

Penalties change the raw logits, the temperature divides them, filters then drop the unlikely ones:
the order in which transformers and vLLM sample. Shapes: V vocabulary, H tokens of history, and any
leading ones: [B, V] in rollouts, [B, T, V] in training.
"""

import math
from dataclasses import dataclass, replace

import mlx.core as mx

from grpo_protocol.config import GRPOConfig

# Its exponential is exactly 0, and unlike with -inf 0 times it, or its square, is 0 too: an entropy
# and its gradient stay numbers.
DROPPED = -1e18
NO_TOKEN = -1
"""Stands in a history where there is no token yet."""


@dataclass(frozen=True)
class Distribution:
    """What is done to a model's logits before a token is drawn; as it stands, nothing."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context_size: int = 256
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20

    @classmethod
    def of(cls, config: GRPOConfig) -> "Distribution":
        """The settings of the same names."""
        return cls(**{name: getattr(config, name) for name in cls.__dataclass_fields__})

    @classmethod
    def for_training(cls, config: GRPOConfig) -> "Distribution":
        """The distribution that training scores tokens under.

        It is the one they were drawn from, as long as the weights are those that drew them. Which
        tokens a filter leaves depends on the weights, so for rollouts that are used again it is
        left out.
        """
        distribution = cls.of(config)
        return distribution.without_filters() if config.reuses_rollouts else distribution

    @property
    def history_size(self) -> int:
        """Tokens, prompt included, that the penalties look back on; 0 when they are off."""
        sizes = (
            self.repetition_context_size * (self.repetition_penalty != 1),
            self.presence_context_size * (self.presence_penalty != 0),
            self.frequency_context_size * (self.frequency_penalty != 0),
        )
        return max(sizes)

    def histories(self, ids_B_T: mx.array) -> mx.array | None:
        """What the token after each of the ids is drawn with, [B, T, H]; None without penalties."""
        return history_windows(ids_B_T, self.history_size) if self.history_size else None

    @property
    def truncates(self) -> bool:
        """Whether some tokens cannot be drawn at all."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def without_filters(self) -> "Distribution":
        """The same, with every token left in."""
        return replace(self, top_k=0, top_p=1.0, min_p=0.0)

    def logits(
        self, logits: mx.array, history: mx.array | None = None, chosen: mx.array | None = None
    ) -> mx.array:
        """Float32 logits [..., V] whose softmax is the distribution, from a model's raw logits.

        `history` [..., H] holds the ids before each position, the latest last, and `NO_TOKEN` where
        there are none; only penalties read it. Dropped tokens have probability 0 exactly. The ids
        `chosen` [...] are never dropped: a full forward pass differs from cached decoding in its
        last bits, and must not give a token probability 0 that was drawn. Which tokens are dropped
        is a constant to gradients. Raises `ValueError` for penalties without a history.
        """
        scaled = self.penalized(logits, history) / self.temperature
        if not self.truncates:
            return scaled
        dropped = self._dropped(mx.stop_gradient(scaled))
        if chosen is not None:
            dropped = mx.put_along_axis(dropped, chosen[..., None], mx.array(False), axis=-1)
        return mx.where(dropped, DROPPED, scaled)

    def penalized(self, logits: mx.array, history: mx.array | None = None) -> mx.array:
        """Float32 logits [..., V] after the penalties alone, at temperature 1.

        Repetition divides positive and multiplies negative logits of every token in its window
        (Keskar et al. 2019, https://arxiv.org/abs/1909.05858); presence is then subtracted once for
        each token in its own window, and frequency once for each occurrence.
        """
        scores = logits.astype(mx.float32)
        if not self.history_size:
            return scores
        if history is None:
            raise ValueError("penalties need the tokens before each position")
        if self.repetition_penalty != 1:
            seen = _occurs(history[..., -self.repetition_context_size :], scores)
            less = mx.where(
                scores > 0, scores / self.repetition_penalty, scores * self.repetition_penalty
            )
            scores = mx.where(seen, less, scores)
        if self.presence_penalty:
            seen = _occurs(history[..., -self.presence_context_size :], scores)
            scores = scores - self.presence_penalty * seen
        if self.frequency_penalty:
            counts = _count(history[..., -self.frequency_context_size :], scores)
            scores = scores - self.frequency_penalty * counts
        return scores

    def _dropped(self, scores: mx.array) -> mx.array:
        """Booleans [..., V]: what the filters take out. A row with NaN keeps everything."""
        dropped = mx.zeros(scores.shape, dtype=mx.bool_)
        vocabulary = scores.shape[-1]
        if 0 < self.top_k < vocabulary or self.top_p < 1:
            best = mx.topk(scores, self.top_k) if 0 < self.top_k < vocabulary else scores
            descending = -mx.sort(-best, axis=-1)
            dropped = _all_but(self._support(descending), descending, scores)
        if self.min_p > 0:
            least = mx.max(scores, axis=-1, keepdims=True) + math.log(self.min_p)
            dropped = dropped | (scores < least)
        return dropped

    def _support(self, descending: mx.array) -> mx.array:
        """How many [..., 1] of the scores, sorted from the largest, top-p keeps; at least one."""
        if self.top_p >= 1:
            return mx.full((*descending.shape[:-1], 1), descending.shape[-1])
        probabilities = mx.softmax(descending, axis=-1)
        before = mx.cumsum(probabilities, axis=-1, inclusive=False)
        return mx.maximum((before < self.top_p).sum(axis=-1, keepdims=True), 1)


def history_windows(ids_B_T: mx.array, size: int) -> mx.array:
    """Ids [B, T, size] up to and including each position: what the token after it is drawn with."""
    batch, length = ids_B_T.shape
    ids = ids_B_T.astype(mx.int32)
    padded = mx.concatenate([mx.full((batch, size), NO_TOKEN, dtype=mx.int32), ids], axis=1)
    return padded[:, mx.arange(length)[:, None] + mx.arange(1, size + 1)[None]]


def last_tokens(ids: list[int], size: int) -> list[int]:
    """The last `size` of `ids`, filled up on the left with `NO_TOKEN`."""
    kept = ids[-size:]
    return [NO_TOKEN] * (size - len(kept)) + kept


def _all_but(number: mx.array, descending: mx.array, scores: mx.array) -> mx.array:
    """True outside of the `number` [..., 1] largest scores; of equal ones the first are kept."""
    least = mx.take_along_axis(descending, number - 1, axis=-1)
    equal = scores == least
    room = number - (scores > least).sum(axis=-1, keepdims=True)
    return (scores < least) | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) > room))


def _places(history: mx.array, vocabulary: int) -> mx.array:
    """Columns of a table with one more column than the vocabulary, for `NO_TOKEN`."""
    return mx.where(history < 0, vocabulary, history)


def _occurs(history: mx.array, scores: mx.array) -> mx.array:
    """Booleans [..., V]: which tokens are in history [..., H]."""
    vocabulary = scores.shape[-1]
    table = mx.zeros((*scores.shape[:-1], vocabulary + 1), dtype=mx.bool_)
    places = _places(history, vocabulary)
    return mx.put_along_axis(table, places, mx.array(True), axis=-1)[..., :vocabulary]


def _count(history: mx.array, scores: mx.array) -> mx.array:
    """Float32 [..., V]: how often each token is in history [..., H]."""
    vocabulary = scores.shape[-1]
    places = _places(history, vocabulary).reshape(-1, history.shape[-1])
    table = mx.zeros((places.shape[0], vocabulary + 1))
    table = table.at[mx.arange(places.shape[0])[:, None], places].add(1.0)
    return table[:, :vocabulary].reshape(scores.shape)
