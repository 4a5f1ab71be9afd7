"""Every architecture is cut in two, and the halves score and learn as the whole does."""

import functools
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_map

from architectures import (
    ARCHITECTURES,
    VOCABULARY,
    architecture,
    make_architecture,
    make_architecture_folder,
)
from grpo_trainer import completion_scores
from grpo_trainer.batch_probe import how_to_decode
from grpo_trainer.learner import Learner
from grpo_trainer.policy import load_policy
from grpo_trainer.split_forward import SplitForward, head_parameters
from grpo_trainer.trees import leaves, number
from learners import config_of, copy_of, largest, largest_difference, make_rows

IDS = mx.array([[(7 * place + start) % VOCABULARY for place in range(20)] for start in (1, 5)])
PLACES = mx.array([0, 3, 19, 20, 31])
HEADS: dict[str, str] = {
    "phi": "lm_head",
    "gpt_neox": "model.embed_out",
    "phixtral": "lm_head.linear",
    "mamba": "lm_head",
    "plamo2": "lm_head",
    "lille-130m": "transformer.tok_embeddings",
    "gemma3n": "model.language_model.embed_tokens",
}
"""Of architectures that are cut before it."""
NAMES = tuple(name for name in HEADS if name != "phixtral")
"""Those whose folder has as many tokens as its tokenizer; phixtral names its number otherwise."""
TRAINED: dict[str, dict[str, Any]] = {
    "full": {"fine_tune_type": "full"},
    "lora": {"fine_tune_type": "lora"},
    "dora": {"fine_tune_type": "dora"},
}


def split_of(model: Any) -> SplitForward:
    split = SplitForward.of(model)
    assert split is not None
    return split


def gap(one: mx.array, other: mx.array) -> float:
    return number(mx.abs(one - other).max())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_P03_each_architecture_is_cut_where_states_are_narrower_than_logits(name: str) -> None:
    model = architecture(name)
    split = split_of(model)
    hidden_B_T_H = split.hidden(IDS)
    assert hidden_B_T_H.shape[:2] == IDS.shape
    assert hidden_B_T_H.shape[2] < split.vocabulary == VOCABULARY
    whole = model(IDS).reshape(-1, VOCABULARY)[PLACES]
    halves = split.logits(hidden_B_T_H.reshape(-1, hidden_B_T_H.shape[2])[PLACES])
    assert gap(halves, whole) < 1e-4 * max(1.0, number(mx.abs(whole).max()))


@functools.cache
def folder_of(name: str, root: Path) -> Path:
    return make_architecture_folder(root / name, name)


def learner_of(name: str, root: Path, **settings: Any) -> Learner:
    """One that trains the head, and the layers too, whose adapters already add something."""
    if settings["fine_tune_type"] != "full":
        settings["lora_keys"] = [HEADS[name], *_keys_in_layers(name)]
    config = config_of(folder_of(name, root), **settings)
    policy = load_policy(config, lambda message: None)
    how_to_decode(policy.model)
    policy.adopt(tree_map(lambda weight: weight + 0.01, policy.weights))
    return Learner(policy, config)


def _keys_in_layers(name: str) -> list[str]:
    """Of one linear module."""
    layer = architecture(name).layers[0]
    linear = (key for key, module in layer.named_modules() if isinstance(module, nn.Linear))  # type: ignore[attr-defined]
    return [next(linear)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("architectures")


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize("name", NAMES)
def test_P03_pieces_give_the_loss_and_gradients_of_one_pass_over_the_whole(
    name: str, kind: str, root: Path
) -> None:
    """The whole is the model itself, which makes all of its logits at once."""
    learner = learner_of(name, root, **TRAINED[kind])
    config = config_of(clip_epsilon=0.2)
    with patch.object(SplitForward, "of", lambda model: None):
        undivided = Learner(learner.policy, config)
    expected = undivided.gradient([make_rows()], config, seed=7)
    slopes = copy_of(expected.gradients)
    with (
        patch.object(completion_scores, "LOGITS_AT_ONCE", 0),
        patch.object(completion_scores, "LOGITS_A_PIECE", 5 * 266),
    ):
        found = learner.gradient([make_rows()], config, seed=7)
    of_head = [key for key in slopes if key.startswith(HEADS[name])]
    assert of_head
    assert all(number(mx.abs(slopes[key]).max()) > 0 for key in of_head)
    assert number(found.loss) == pytest.approx(number(expected.loss), abs=1e-6)
    difference = largest_difference(copy_of(found.gradients), slopes)
    assert difference < 2e-5 * largest(slopes)


@pytest.mark.parametrize("name", HEADS)
def test_logits_that_nobody_asks_for_are_not_computed(name: str) -> None:
    """Neither going forward nor for the gradient, though both halves run the whole model."""
    model = make_architecture(name)
    split = split_of(model)
    head = _at(model, HEADS[name])
    wide = 2**19
    head.weight = mx.concatenate([head.weight, mx.zeros((wide, head.weight.shape[1]))])
    if "bias" in head:
        head.bias = mx.concatenate([head.bias, mx.zeros(wide)])
    ids = mx.tile(IDS, (4, 1))

    def total(weights: Any) -> mx.array:
        model.update(weights)
        squares: mx.array = split.hidden(ids).square().sum()
        return squares

    model.freeze()
    model.layers[0].unfreeze()
    weights = model.trainable_parameters()
    mx.eval(model.parameters())
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(mx.grad(total)(weights))
    model.update(weights)
    one_row = IDS.shape[1] * wide * 4
    assert mx.get_peak_memory() - before < one_row
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(model(ids[:1]))
    assert mx.get_peak_memory() - before > one_row


def _at(model: Any, path: str) -> Any:
    return dict(model.named_modules())[path]


@pytest.mark.parametrize("name", HEADS)
def test_the_model_is_itself_again_afterwards(name: str) -> None:
    model = architecture(name)
    kinds = [type(module) for _, module in model.named_modules()]
    split = split_of(model)
    assert head_parameters(model, split)
    split.logits(split.hidden(IDS)[0])
    with pytest.raises(ValueError, match="dimension"):
        split.logits(mx.zeros((2, 7)))
    assert [type(module) for _, module in model.named_modules()] == kinds


@pytest.mark.parametrize("name", ["phi", "gpt_neox", "mamba", "lille-130m", "gemma3n"])
def test_the_head_is_its_own_weights_tied_ones_too(name: str) -> None:
    model = architecture(name)
    split = split_of(model)
    before = leaves(model.parameters())
    own = {f"{HEADS[name]}.{key}" for key in _at(model, HEADS[name])}
    assert head_parameters(model, split) == own
    after = leaves(model.parameters())
    assert all(one is other for (_, one), (_, other) in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("name", ["llama", "phi", "mamba", "gemma3n"])
def test_both_factors_of_a_new_adapter_are_part_of_the_head(
    name: str, kind: str, root: Path
) -> None:
    """The second is 0, which hides the first from the logits but not for long."""
    head = HEADS.get(name, "lm_head")
    config = config_of(folder_of(name, root), fine_tune_type=kind, lora_keys=[head])
    model = load_policy(config, lambda message: None).model
    split = split_of(model)
    factors = {"lora_a", "lora_b", "m"} if kind == "dora" else {"lora_a", "lora_b"}
    assert head_parameters(model, split) == {f"{head}.{factor}" for factor in factors}
    adapted = _at(model, head)
    adapted.lora_b = adapted.lora_b + 0.1
    assert gap(split.logits(split.hidden(IDS)[0]), model(IDS)[0]) < 1e-4 * number(
        mx.abs(model(IDS)).max()
    )


@pytest.mark.parametrize("name", [name for name in HEADS if name != "gemma3n"])
def test_a_head_that_comes_last_makes_logits_without_the_layers(name: str) -> None:
    model = architecture(name)
    split = split_of(model)
    states = split.hidden(IDS)[0]
    with patch.object(type(model.layers[0]), "__call__", side_effect=AssertionError):
        split.logits(states)
