"""Models and caches that are sound but for one fault, for the probe to find."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from architectures import architecture, make_architecture


class Like:
    """A sound model, but for what a test changes about it."""

    def __init__(self, name: str = "llama", model: Any = None) -> None:
        self.model = model or architecture(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        logits: mx.array = self.model(ids, cache=cache)
        return logits


class OnePosition(Like):
    """Asks one row for the position of all."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        for layer in cache or ():
            if isinstance(layer, BatchKVCache):
                layer.offset = mx.broadcast_to(layer.offset[-1:], layer.offset.shape)
        return super().__call__(ids, cache)


class NotANumber(Like):
    """Overflows when rows are decoded together."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        logits = super().__call__(ids, cache)
        return logits * float("nan") if cache and len(ids) > 1 else logits


class KeepsTheFirst(BatchKVCache):  # type: ignore[misc]
    """Drops the last rows, whichever are to leave."""

    def filter(self, batch_indices: mx.array) -> None:
        leave = len(batch_indices) < len(self.offset)
        super().filter(mx.arange(len(batch_indices)) if leave else batch_indices)


class MergesWrongly(KVCache):  # type: ignore[misc]
    @classmethod
    def merge(cls, caches: Any) -> Any:
        return KeepsTheFirst([0] * len(caches))


class NeverMerges(KVCache):  # type: ignore[misc]
    @classmethod
    def merge(cls, caches: Any) -> Any:
        raise NotImplementedError("rows of\nthis cache stay apart")


class With(Like):
    """Has caches of another class."""

    def __init__(self, cache_class: type) -> None:
        super().__init__()
        self._cache_class = cache_class

    def make_cache(self) -> list[Any]:
        return [self._cache_class() for _ in self.model.layers]


class OneRow(Like):
    """Takes several rows only where there is no cache."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        if cache and len(ids) > 1:
            raise ValueError("one row, please")
        return super().__call__(ids, cache)


class MixesPlainRows(Like):
    """Decodes some rows with those of others, if they share a cache."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        logits = super().__call__(ids, cache)
        return logits + 0.2 * logits[::-1] if cache and len(ids) > 1 else logits


class ReadsOnePrompt(Like):
    """Reads the first prompt for every row that is read with it."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        reads = cache and ids.shape[1] > 1
        return super().__call__(mx.broadcast_to(ids[:1], ids.shape) if reads else ids, cache)


class OutOfReach(NeverMerges):
    """Has its rows where nobody can take some out."""

    def __init__(self) -> None:
        self._box: Any = SimpleNamespace(keys=None, values=None)
        super().__init__()

    @property
    def keys(self) -> Any:
        return self._box.keys

    @keys.setter
    def keys(self, value: Any) -> None:
        self._box.keys = value

    @property
    def values(self) -> Any:
        return self._box.values

    @values.setter
    def values(self, value: Any) -> None:
        self._box.values = value


class WrongWithCache(Like):
    """Forgets what it has read, as soon as it reads with a cache."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        return super().__call__(ids, cache and self.model.make_cache())


class FailsWithCache(Like):
    """Runs without a cache only, and so does its backbone."""

    def __init__(self) -> None:
        super().__init__("llama", make_architecture("llama"))
        self.model.layers[0].self_attn.rope = self._rope

    def _rope(self, states: mx.array, offset: Any = None) -> mx.array:
        if offset is not None:
            raise RuntimeError("no cache, please")
        return states


class SeesOtherRows(Like):
    """Mixes the rows of a training batch."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        logits = super().__call__(ids, cache)
        alone = cache or len(ids) == 1
        return logits if alone else logits + 0.2 * logits.mean(axis=0, keepdims=True)


class MasksTokens(Like):
    """Gives tokens that nobody has a name for no probability at all."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        logits = super().__call__(ids, cache)
        nameless = mx.arange(logits.shape[-1]) >= 100
        return mx.where(nameless, -float("inf"), logits)


class LosesTheLast(NeverMerges):
    """A plain cache whose rows are others once some have left."""

    def __setattr__(self, name: str, value: Any) -> None:
        held = getattr(self, name, None)
        if isinstance(held, mx.array) and len(value) < len(held):
            value = mx.roll(value, 1, 0) if len(value) > 1 else held[:1]
        super().__setattr__(name, value)
