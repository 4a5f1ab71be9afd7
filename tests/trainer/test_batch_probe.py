"""The probe finds what an architecture cannot do, whatever the reason, and changes nothing."""

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import BatchKVCache, KVCache

from architectures import architecture, make_architecture
from grpo_trainer.batch_probe import Decoding, how_to_decode
from grpo_trainer.errors import ModelError
from grpo_trainer.trees import leaves


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


class WrongWithCache(Like):
    """Forgets what it has read, as soon as it reads with a cache."""

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        return super().__call__(ids, cache and self.model.make_cache())


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


def test_a_sound_model_decodes_together_and_trains_padded() -> None:
    for model in (architecture("llama"), architecture("qwen3_5"), MasksTokens()):
        assert how_to_decode(model) == Decoding(model.model_type)
        assert how_to_decode(model).warnings == []


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: With(NeverMerges), "fails: rows of$"),
        (lambda: Like("deepseek_v41"), "fails: .* no attribute 'merge'"),
        (lambda: With(MergesWrongly), "gives logits that are off by .* of their spread"),
        (OnePosition, "gives logits that are off by .* of their spread"),
        (NotANumber, "gives logits that are off by inf"),
    ],
    ids=["merge fails", "no merge", "filter is wrong", "one position", "no number"],
)
def test_rows_that_cannot_be_decoded_together_are_decoded_alone(
    make: Callable[[], Any], reason: str
) -> None:
    model = make()
    found = how_to_decode(model)
    assert not found.together
    assert found.padded
    (warning,) = found.warnings
    name = model.model_type
    assert warning.startswith(f"model_type='{name}': completions are decoded one at a time")
    assert "\n" not in warning
    assert re.search(f"decoding them together {reason}", warning)


def test_the_fault_of_a_model_that_masks_tokens_is_found_too() -> None:
    class Faulty(MasksTokens, OnePosition):
        pass

    assert not how_to_decode(Faulty()).together


def test_rows_that_disturb_each_other_in_training_are_trained_alone() -> None:
    found = how_to_decode(SeesOtherRows())
    assert found.together
    assert not found.padded
    (warning,) = found.warnings
    assert warning.startswith("model_type='llama': rows are trained one at a time")


@pytest.mark.parametrize("together", [True, False])
def test_a_model_that_decodes_otherwise_than_it_trains_is_refused(together: bool) -> None:
    with pytest.raises(ModelError, match="model_type='llama': rollouts and training would disag"):
        how_to_decode(WrongWithCache(), together=together)


def test_a_model_that_cannot_run_here_is_refused() -> None:
    class Fails(Like):
        def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
            raise RuntimeError("no such kernel\nin this back end")

    with pytest.raises(
        ModelError, match="model_type='llama': a forward pass fails: no such kernel;"
    ):
        how_to_decode(Fails())


def test_who_decodes_one_at_a_time_anyway_hears_of_no_obstacle() -> None:
    assert how_to_decode(architecture("gemma2"), together=False).warnings == []
    assert len(how_to_decode(architecture("gemma2")).warnings) == 1


def test_rows_reach_beyond_a_window_that_is_not_too_long() -> None:
    """Only beyond its window does this architecture decode otherwise than it trains."""
    model = make_architecture("plamo3", sliding_window=64)
    with pytest.raises(ModelError, match="training would disagree"):
        how_to_decode(model)
    assert how_to_decode(model, longest=67).together


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
def test_rounding_in_half_precision_is_no_fault_and_a_fault_is_one(name: str, dtype: Any) -> None:
    model = make_architecture(name)
    model.set_dtype(dtype)
    assert how_to_decode(model) == Decoding(model.model_type)
    assert not how_to_decode(OnePosition(model=model)).together


class Noisy(nn.Module):  # type: ignore[misc, name-defined]
    """Drops half of the last hidden state out, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_architecture("llama")
        self.model_type = "noisy"
        self.dropout = nn.Dropout(0.5)  # type: ignore[attr-defined]

    @property
    def layers(self) -> Any:
        return self.model.layers

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        hidden = self.model.model(ids, cache=cache)
        logits: mx.array = self.model.lm_head(self.dropout(hidden))
        return logits


@pytest.mark.parametrize("training", [True, False])
def test_the_probe_leaves_mode_weights_and_random_numbers_alone(training: bool) -> None:
    model = Noisy()
    model.train(training)
    before = {name: mx.array(value) for name, value in leaves(model.parameters())}
    mx.random.seed(5)
    expected = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(5)
    assert how_to_decode(model).together
    assert mx.random.uniform(shape=(4,)).tolist() == expected
    assert {module.training for module in model.modules()} == {training}
    assert all(mx.array_equal(value, before[name]) for name, value in leaves(model.parameters()))


def test_a_refusal_leaves_the_mode_alone_too() -> None:
    model = make_architecture("plamo3")
    model.train()
    with pytest.raises(ModelError):
        how_to_decode(model)
    assert model.training
