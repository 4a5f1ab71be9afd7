"""Muon: which weights it moves, and how far in which directions."""

import math

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_unflatten

from grpo_trainer.optimizers import is_muon_matrix, make_optimizer
from grpo_trainer.trees import leaves, number
from learners import largest_difference
from optimizer_walks import SHAPES, learner_with, settings_of, tree_of, walk


def muon_step(gradient: mx.array, rate: float = 1e-2) -> mx.array:
    """What Muon adds to a matrix of zeros in its first step."""
    weights = {"layers": [{"weight": mx.zeros_like(gradient)}]}
    optimizer = make_optimizer(settings_of("muon", learning_rate=rate), weights)
    moved: mx.array = optimizer.apply_gradients({"layers": [{"weight": gradient}]}, weights)[
        "layers"
    ][0]["weight"]
    return moved


@pytest.mark.parametrize("shape", [(32, 32), (16, 64), (96, 24), (8, 256)])
def test_muon_moves_a_matrix_equally_far_in_all_directions(shape: tuple[int, int]) -> None:
    """Five Newton-Schulz steps bring singular values near 1: to 0.7 … 1.2."""
    gradient = mx.random.normal(shape, key=mx.random.key(1))
    move = np.array(muon_step(gradient), dtype=np.float64)
    found = np.linalg.svd(move, compute_uv=False) / (1e-2 * 0.2 * math.sqrt(max(shape)))
    assert found.min() > 0.6
    assert found.max() < 1.25
    assert math.sqrt((move**2).mean()) == pytest.approx(0.2e-2, rel=0.2)
    assert np.vdot(move, np.array(gradient)) < 0


def test_muon_takes_each_expert_of_a_stack_by_itself() -> None:
    gradient = mx.random.normal((3, 12, 8), key=mx.random.key(2)) * mx.array(
        [[[1.0]], [[9]], [[0]]]
    )
    move = muon_step(gradient)
    alone = mx.stack([muon_step(expert) for expert in gradient])
    assert largest_difference({"": move}, {"": alone}) < 1e-7
    assert number(mx.abs(move[2]).max()) == 0


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 4), True),
        ("transformer.h.11.attn.c_attn.weight", (8, 4), True),
        ("model.layers.0.self_attn.q_proj.lora_a", (8, 2), True),
        ("model.layers.0.self_attn.q_proj.lora_b", (2, 8), True),
        ("model.layers.0.mlp.switch_mlp.up_proj.weight", (3, 8, 4), True),
        ("model.layers.0.mlp.switch_mlp.up_proj.lora_b", (3, 8, 2), True),
        ("transformer.blocks.0.norm_attn_norm.attn.out_proj.weight", (8, 4), True),
        ("model.layers.0.self_attn.q_proj.lora_a", (8, 1), False),
        ("model.layers.0.self_attn.q_proj.m", (8,), False),
        ("model.layers.0.self_attn.q_proj.bias", (8,), False),
        ("model.layers.0.mlp.switch_mlp.up_proj.bias", (3, 8), False),
        ("model.layers.0.self_attn.q_norm.weight", (4, 8), False),
        ("model.layers.0.linear_attn.conv1d.weight", (8, 4, 1), False),
        ("model.layers.0.mixer.A_log", (8, 4), False),
        ("model.embed_tokens.weight", (32, 8), False),
        ("model.embed_tokens.lora_a", (32, 2), False),
        ("transformer.wte.weight", (32, 8), False),
        ("model.ngram_embeddings.embedders.0.weight", (32, 8), False),
        ("lm_head.weight", (32, 8), False),
        ("lm_head.lora_b", (2, 32), False),
        ("output.weight", (32, 8), False),
    ],
)
def test_muon_takes_the_matrices_of_the_layers(
    name: str, shape: tuple[int, ...], expected: bool
) -> None:
    assert is_muon_matrix(name, mx.zeros(shape)) == expected
    optimizer = make_optimizer(settings_of("muon"), tree_unflatten([(name, mx.zeros(shape))]))
    moments = {n.removeprefix(f"{name}.") for n, _ in leaves(optimizer.state) if name in n}
    assert moments == ({"v"} if expected else {"m", "v"})


@pytest.mark.parametrize(("fine_tune_type", "others"), [("lora", 0), ("full", 1 + 1 + 2 * 4)])
def test_muon_leaves_the_vectors_and_the_embedding_of_a_model_to_adamw(
    fine_tune_type: str, others: int
) -> None:
    """Two layers with four norms each, the last norm, and an embedding that is the head too."""
    learner, _ = learner_with("muon", fine_tune_type=fine_tune_type)
    names = {name for name, _ in leaves(learner.optimizer.state) if name.endswith(".m")}
    assert len(names) == others
    assert all("norm" in name or "embed_tokens" in name for name in names)


def test_muon_treats_other_weights_as_adamw_does() -> None:
    others = {name for name, shape in SHAPES.items() if not is_muon_matrix(name, mx.zeros(shape))}
    assert 0 < len(others) < len(SHAPES)
    weights = tree_of(SHAPES, 0)
    beside = {"adamw_beta1": 0.8, "adamw_beta2": 0.9, "adamw_eps": 1e-3, "weight_decay": 0.3}
    muon = walk(make_optimizer(settings_of("muon", **beside), weights), weights, [1e-2] * 3, 1)
    adamw = walk(make_optimizer(settings_of("adamw", **beside), weights), weights, [1e-2] * 3, 1)
    same = {
        name: bool(mx.array_equal(weight, dict(leaves(adamw))[name]).item())
        for name, weight in leaves(muon)
    }
    assert same == {name: name in others for name in SHAPES}
