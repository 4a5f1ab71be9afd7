"""What adapters do: they start as a no-op, all of them learn, and the model's weights stay."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_unflatten

from adapter_kinds import EXPERTS, KINDS, QUANTIZED, frozen_of, load
from grpo_trainer.distribution import Distribution
from grpo_trainer.learner import Learner
from grpo_trainer.policy import load_policy
from grpo_trainer.token_scores import score_tokens
from grpo_trainer.training_rows import to_tensors
from grpo_trainer.trees import leaves
from learners import are_identical, config_of, copy_of, largest, largest_difference, make_rows
from tiny_model import make_model, quantize, tiny_model, tiny_quantized


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mode", "bits", "group_size"), QUANTIZED)
def test_adapters_of_a_quantized_model_learn_and_its_weights_stay(
    kind: str, mode: str, bits: int, group_size: int
) -> None:
    config = config_of(
        tiny_quantized("qwen3", mode, bits, group_size), fine_tune_type=kind, learning_rate=1e-3
    )
    learner = Learner(load_policy(config, lambda message: None), config)
    base, start = frozen_of(learner.policy), copy_of(learner.policy.weights)
    assert any(weight.dtype == mx.uint32 for weight in base.values())
    assert {weight.dtype for weight in start.values()} == {mx.float32}
    for step in (1, 2):  # the first moves lora_b alone, which makes a gradient for lora_a
        assert learner.update([make_rows()], config, step).applied
    assert are_identical(frozen_of(learner.policy), base)
    now = copy_of(learner.policy.weights)
    assert [name for name in now if mx.array_equal(now[name], start[name])] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("keys", [[], ["model.embed_tokens"]])
def test_dora_starts_as_a_no_op(dtype: str, keys: list[str]) -> None:
    folder = tiny_model("qwen3", "bfloat16")
    policy = load(folder, fine_tune_type="dora", dtype=dtype, lora_keys=keys)
    plain = load(folder, fine_tune_type="full", dtype=dtype)
    ids = mx.array([[1, 2, 3, 200]])
    expected = plain.model(ids).astype(mx.float32)
    found = policy.model(ids).astype(mx.float32)
    worst = largest_difference({"logits": found}, {"logits": expected})
    assert worst < (1e-5 if dtype == "float32" else 0.02) * largest({"logits": expected})
    sizes = [weight for name, weight in leaves(policy.weights) if name.endswith(".m")]
    assert {weight.dtype for weight in sizes} == {mx.float32}
    if keys:  # in the precision of training, not in that of the file
        rows = plain.model.model.embed_tokens.weight.astype(mx.float32)
        assert mx.allclose(sizes[0], mx.linalg.norm(rows, axis=1), rtol=1e-6).item()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False])
def test_adapters_on_the_embedding_and_the_head_get_the_whole_gradient(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    """A tied embedding is used twice: where tokens come in and where logits go out."""
    folder = make_model(tmp_path / "model", tie_word_embeddings=tied)
    keys = ["model.embed_tokens"] if tied else ["model.embed_tokens", "lm_head"]
    config = config_of(
        folder, fine_tune_type=kind, lora_keys=keys, learning_rate=1e-3, loss_type="dapo"
    )
    learner = Learner(load_policy(config, lambda message: None), config)
    learner.update([make_rows()], config, 1)  # from here on no factor is 0
    rows, model = make_rows(), learner.policy.model
    batch, distribution = to_tensors(rows), Distribution.for_training(config)

    def loss(weights: Any) -> mx.array:
        """The loss at a ratio of 1: minus the mean of A·log π over all tokens."""
        model.update(tree_unflatten(list(weights.items())))
        logprobs, _ = score_tokens(model, batch, distribution)
        old = mx.stop_gradient(logprobs)
        terms = batch.advantages_B[:, None] * mx.exp(logprobs - old) * batch.mask_B_T
        return -terms.sum() / batch.mask_B_T.sum()

    weights = dict(leaves(learner.policy.weights))
    expected = mx.grad(loss)(weights)
    learner.policy.install(learner.policy.weights)
    found = copy_of(learner.gradient([rows], config).gradients)
    assert set(found) == set(expected)
    assert all(largest({name: gradient}) > 0 for name, gradient in found.items())
    assert largest_difference(found, expected) < 1e-5 * largest(expected)


@pytest.mark.parametrize("count", [20, 120])  # mlx-lm sorts tokens by expert from 64 choices on
@pytest.mark.parametrize("quantized", [False, True])
def test_adapters_of_experts_that_got_tokens_have_a_gradient(count: int, quantized: bool) -> None:
    folder = tiny_quantized("qwen3_moe") if quantized else tiny_model("qwen3_moe")
    policy = load(folder, lora_keys=EXPERTS, lora_layers=1)
    model = policy.model
    chosen: list[int] = []
    experts = model.layers[1].mlp.switch_mlp
    plain = type(experts).__call__

    class Listening(type(experts)):  # type: ignore[misc]
        def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
            if not chosen:
                chosen.extend(mx.stop_gradient(indices).flatten().tolist())  # type: ignore[arg-type]
            return plain(self, x, indices)  # type: ignore[no-any-return]

    ids = mx.array([[7 + n % 3 for n in range(count // 2)]])
    experts.__class__ = Listening
    model(ids)
    experts.__class__ = Listening.__base__

    def loss(weights: Any) -> mx.array:
        model.update(weights)
        logits: mx.array = model(ids)
        return logits.square().sum()

    slopes = dict(leaves(mx.grad(loss)(policy.weights)))
    used = set(chosen)
    assert 0 < len(used) < 8
    for name, slope in slopes.items():
        sizes = mx.abs(slope).max(axis=(1, 2)).tolist()
        if name.endswith("lora_b"):
            assert {n for n, size in enumerate(sizes) if size > 0} == used  # type: ignore[arg-type, operator]
        else:
            assert sizes == [0.0] * 8  # B is 0


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_experts_move_the_whole_model(kind: str) -> None:
    config = config_of(tiny_model("qwen3_moe"), fine_tune_type=kind, learning_rate=1e-2)
    learner = Learner(load_policy(config, lambda message: None), config)
    base = frozen_of(learner.policy)
    ids = mx.array([[1, 2, 3]])
    before = copy_of({"logits": learner.policy.model(ids)})
    for step in (1, 2):
        assert learner.update([make_rows()], config, step).applied
    assert largest_difference({"logits": learner.policy.model(ids)}, before) > 1e-2
    assert are_identical(frozen_of(learner.policy), base)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_on_in_updates_alone(kind: str) -> None:
    settings: dict[str, Any] = {"fine_tune_type": kind, "learning_rate": 1e-2}
    ids = mx.array([[1, 2, 3]])
    found = []
    for dropout in (0.0, 0.5):
        config = config_of(lora_dropout=dropout, **settings)
        learner = Learner(load_policy(config, lambda message: None), config)
        for step in (1, 2):
            learner.update([make_rows()], config, step)
        logits = learner.policy.model(ids)
        assert mx.array_equal(learner.policy.model(ids), logits).item()
        found.append(copy_of(learner.policy.weights))
    assert not are_identical(found[0], found[1])


def test_a_quantized_tied_embedding_takes_lora(tmp_path: Path) -> None:
    folder = quantize(make_model(tmp_path / "model"))
    config = config_of(folder, lora_keys=["model.embed_tokens"], learning_rate=1e-2)
    learner = Learner(load_policy(config, lambda message: None), config)
    start = copy_of(learner.policy.weights)
    for step in (1, 2):
        learner.update([make_rows()], config, step)
    now = copy_of(learner.policy.weights)
    assert [name for name in now if mx.array_equal(now[name], start[name])] == []
