"""The two halves of a model: hidden states, and logits from hidden states."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models import gemma2, gemma3_text, llama

from grpo_trainer.model_cuts import CutAfterBackbone
from grpo_trainer.model_source import load_model
from grpo_trainer.split_forward import SplitForward, head_parameters
from grpo_trainer.trees import number
from learners import make_learner
from tiny_model import Kind, tiny_model

IDS = mx.array([[5, 9, 77, 200], [3, 3, 1, 8]])
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 300,
}


def of_kind(module: Any, **settings: Any) -> Any:
    args = module.ModelArgs.from_dict({"model_type": "any", **SIZES, **settings})
    model = module.Model(args)
    mx.eval(model.parameters())
    return model


MODELS: dict[str, Any] = {
    "tied": lambda: of_kind(llama, tie_word_embeddings=True),
    "untied": lambda: of_kind(llama, tie_word_embeddings=False),
    "soft cap": lambda: of_kind(
        gemma2,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=2.0,
        query_pre_attn_scalar=16,
    ),
    "sliding window": lambda: of_kind(
        gemma3_text, sliding_window=4, sliding_window_pattern=2, query_pre_attn_scalar=16
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_halves_together_are_the_whole(name: str) -> None:
    model = MODELS[name]()
    split = SplitForward.of(model)
    assert split is not None
    assert split.vocabulary == 300
    hidden_B_T_H = split.hidden(IDS)
    places = mx.array([1, 2, 6])
    halves = split.logits(hidden_B_T_H.reshape(-1, 32)[places])
    whole = model(IDS).reshape(-1, 300)[places]
    assert number(mx.abs(halves - whole).max()) < 1e-5


def test_the_model_is_itself_again_afterwards() -> None:
    model = MODELS["tied"]()
    kinds = [type(module) for _, module in model.named_modules()]
    split = SplitForward.of(model)
    assert split is not None
    with pytest.raises(ValueError, match="shape"):
        split.logits(mx.zeros((2, 7)))
    assert [type(module) for _, module in model.named_modules()] == kinds
    assert model(IDS).shape == (2, 4, 300)


class Undivided(nn.Module):  # type: ignore[misc, name-defined]
    """A model that holds its layers itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4)]  # type: ignore[attr-defined]
        self.table = mx.random.normal((8, 4))

    def __call__(self, ids: mx.array) -> mx.array:
        logits: mx.array = self.layers[0](self.table[ids]) @ self.table.T
        return logits


def test_a_model_that_cannot_be_split_is_not() -> None:
    assert SplitForward.of(Undivided()) is None


class Meddling(nn.Module):  # type: ignore[misc, name-defined]
    """A model whose logits need more than the hidden states of its backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Undivided()
        self.layers = self.model.layers

    def __call__(self, ids: mx.array) -> mx.array:
        return self.model(ids) + ids[..., None]


def test_halves_that_do_not_make_the_whole_are_refused() -> None:
    assert SplitForward.of(Meddling()) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tied", {"model.embed_tokens.weight"}), ("untied", {"lm_head.weight"})],
)
def test_the_head_is_what_the_logits_depend_on(name: str, expected: set[str]) -> None:
    model = MODELS[name]()
    split = SplitForward.of(model)
    assert split is not None
    before = model(IDS)
    assert head_parameters(model, split) == expected
    assert mx.array_equal(model(IDS), before).item()


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_adapters_in_the_layers_are_no_part_of_the_head(kind: Kind) -> None:
    model = make_learner(kind).policy.model
    split = SplitForward.of(model)
    assert split is not None
    assert head_parameters(model, split) == frozenset()
    assert SplitForward.of(load_model(str(tiny_model(kind)), lambda message: None).model)


TOY_IDS = mx.array([[5, 1, 7, 2], [3, 3, 1, 6]])


def split_of(model: Any) -> SplitForward:
    split = SplitForward.of(model)
    assert split is not None
    return split


def gap(one: mx.array, other: mx.array) -> float:
    return number(mx.abs(one - other).max())


class Toy(nn.Module):  # type: ignore[misc, name-defined]
    """A model of no backbone that ends with one of several heads."""

    def __init__(self, vocabulary: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 8)  # type: ignore[attr-defined]
        self.head = nn.Linear(8, vocabulary)  # type: ignore[attr-defined]

    def __call__(self, ids: mx.array) -> mx.array:
        logits: mx.array = self.head(self.embed(ids))
        return logits


class Capped(Toy):
    """Its logits are reshaped and capped after the head, which small ones do not show."""

    def __call__(self, ids: mx.array) -> mx.array:
        logits: mx.array = self.head(self.embed(ids))
        capped: mx.array = 30 * mx.tanh(logits.reshape(*ids.shape, -1) / 30)
        return capped


class CalledTwice(Toy):
    """Its head is called on something else first."""

    def __call__(self, ids: mx.array) -> mx.array:
        early: mx.array = self.head(self.embed(ids + 1))
        logits: mx.array = self.head(self.embed(ids))
        return logits + 1e-6 * early


class Mixing(Toy):
    """Its logits need more than what the head is given."""

    def __call__(self, ids: mx.array) -> mx.array:
        logits: mx.array = self.head(self.embed(ids))
        more: mx.array = self.embed(ids).sum(axis=-1, keepdims=True)
        return logits + more


class ByPlace(Toy):
    """Its logits depend on the place in the row."""

    def __call__(self, ids: mx.array) -> mx.array:
        logits: mx.array = self.head(self.embed(ids))
        return logits * (1 + mx.arange(ids.shape[1])[:, None])


class Transposed(Toy):
    """Its head is given states of another shape."""

    def __call__(self, ids: mx.array) -> mx.array:
        logits: mx.array = self.head(self.embed(ids).swapaxes(0, 1)).swapaxes(0, 1)
        return logits


@pytest.mark.parametrize("kind", [Toy, Capped])
def test_what_comes_after_the_head_is_a_part_of_the_second_half(kind: type[Toy]) -> None:
    model = kind()
    split = split_of(model)
    model.embed.weight = 100 * model.embed.weight
    hidden_B_T_H = split.hidden(TOY_IDS)
    assert hidden_B_T_H.shape[-1] == 8
    assert gap(split.logits(hidden_B_T_H[1]), model(TOY_IDS)[1]) < 1e-4


def test_states_of_another_shape_are_refused_though_the_logits_do_not_show_it() -> None:
    model = Transposed()
    model.head.weight, model.head.bias = mx.zeros((16, 8)), mx.zeros(16)
    assert SplitForward.of(model) is None


@pytest.mark.parametrize("kind", [CalledTwice, Mixing, ByPlace, Transposed])
def test_a_head_that_does_not_make_the_logits_by_itself_is_refused(kind: type[Toy]) -> None:
    assert SplitForward.of(kind()) is None


class Backbone(Toy):
    """A backbone that holds the head."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary)
        self.layers = [nn.Linear(8, 8)]  # type: ignore[attr-defined]


class Held(nn.Module):  # type: ignore[misc, name-defined]
    """A model whose backbone gives the logits."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.model = Backbone(vocabulary)

    @property
    def layers(self) -> Any:
        return self.model.layers

    def __call__(self, ids: mx.array) -> mx.array:
        logits: mx.array = self.model(ids)
        return logits


def test_a_vocabulary_as_narrow_as_the_states_is_cut_after_the_backbone() -> None:
    model = Held(vocabulary=8)
    split = split_of(model)
    assert isinstance(split.cut, CutAfterBackbone)
    assert gap(split.logits(split.hidden(TOY_IDS)[1]), model(TOY_IDS)[1]) < 1e-6
    assert split_of(Held(vocabulary=9)).hidden(TOY_IDS).shape[-1] == 8
