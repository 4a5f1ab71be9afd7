"""Optimizers of small trees of weights, and of the tiny model, and steps that they take."""

from typing import Any, get_args

import mlx.core as mx
import numpy as np
from mlx.utils import tree_unflatten

from grpo_protocol import GRPOConfig
from grpo_protocol.settings.optimizer import OptimizerType
from grpo_trainer.learner import Learner
from grpo_trainer.trees import ParameterTree, leaves
from learners import config_of, make_learner

TYPES: tuple[str, ...] = get_args(OptimizerType)

SHAPES = {
    "model.embed_tokens.weight": (7, 4),
    "model.layers.0.mlp.gate.weight": (4, 6),
    "model.layers.0.norm.weight": (4,),
    "model.layers.1.mlp.switch_mlp.up_proj.weight": (3, 5, 4),
    "model.layers.1.self_attn.q_proj.bias": (4,),
    "model.layers.2.self_attn.o_proj.weight": (6, 4),
    "model.norm.weight": (4,),
    "lm_head.weight": (7, 4),
}
"""Weights of a small model, in an order that sorting changes."""


def settings_of(kind: str, **settings: Any) -> GRPOConfig:
    """Settings for an optimizer that remembers something."""
    momentum = {"sgd_momentum": 0.9} if kind == "sgd" else {}
    return config_of(**{"optimizer_type": kind, "learning_rate": 1e-2, **momentum, **settings})


def tree_of(shapes: dict[str, tuple[int, ...]], seed: int, scale: float = 0.5) -> ParameterTree:
    """Random float32 weights, or gradients, of those shapes."""
    rng = np.random.default_rng(seed)
    arrays = [(name, mx.array(rng.normal(0, scale, shape))) for name, shape in shapes.items()]
    tree: ParameterTree = tree_unflatten([(n, array.astype(mx.float32)) for n, array in arrays])
    return tree


def walk(optimizer: Any, weights: ParameterTree, rates: list[float], first: int) -> ParameterTree:
    """Weights after a step at each of the rates; the gradients depend on the step's number."""
    shapes = {name: weight.shape for name, weight in leaves(weights)}
    for step, rate in enumerate(rates, start=first):
        optimizer.learning_rate = rate
        weights = optimizer.apply_gradients(tree_of(shapes, 100 + step), weights)
        mx.eval(weights, optimizer.state)
    return weights


def learner_with(kind: str, **settings: Any) -> tuple[Learner, GRPOConfig]:
    """A learner over the tiny model, and its settings."""
    config = settings_of(kind, **settings)
    learner = make_learner(**{"optimizer_type": kind, "learning_rate": 1e-2, **settings})
    return learner, config
