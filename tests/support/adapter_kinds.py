"""Kinds of adapters, quantized models to put them on, and what of a policy they leave alone."""

from pathlib import Path
from typing import Any

import mlx.core as mx

from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.trees import leaves
from learners import config_of, copy_of

EXPERTS = ["mlp.switch_mlp.down_proj", "mlp.switch_mlp.gate_proj", "mlp.switch_mlp.up_proj"]
QUANTIZED = [
    ("affine", 4, 32),
    ("affine", 8, 64),
    ("mxfp4", 4, 32),
    ("nvfp4", 4, 16),
    ("mxfp8", 8, 32),
]
KINDS = ["lora", "dora"]


def load(folder: Path | None = None, **settings: Any) -> Policy:
    """The policy of the tiny model, or of the one in `folder`, with these settings."""
    return load_policy(config_of(folder, **settings), lambda message: None)


def frozen_of(policy: Policy) -> dict[str, mx.array]:
    """The weights that are not trained, by name."""
    trained = dict(leaves(policy.weights))
    return {n: w for n, w in copy_of(policy.model.parameters()).items() if n not in trained}
