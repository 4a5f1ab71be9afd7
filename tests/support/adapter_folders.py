"""Adapter folders to start from, of our own and as mlx-lm's trainer writes them, and their ruin."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.tuner.utils import linear_to_lora_layers

from checkpoints import state_of
from grpo_protocol import GRPOConfig
from grpo_trainer.checkpoint import save_checkpoint
from grpo_trainer.learner import Learner
from grpo_trainer.model_source import load_model
from grpo_trainer.policy import load_policy
from grpo_trainer.tensor_file import read_tensors, write_tensors
from grpo_trainer.trees import leaves
from learners import config_of, make_rows
from tiny_model import tiny_model

WEIGHTS, CONFIG = "adapters.safetensors", "adapter_config.json"
MADE_WITH: dict[str, Any] = {
    "fine_tune_type": "dora",
    "lora_rank": 4,
    "lora_scale": 7.5,
    "lora_layers": 1,
    "lora_keys": ["mlp.up_proj", "self_attn.q_proj"],
}


def learner_of(config: GRPOConfig, steps: int = 0) -> Learner:
    learner = Learner(load_policy(config, lambda message: None), config)
    for step in range(1, steps + 1):
        assert learner.update([make_rows()], config, step).applied
    return learner


def save(folder: Path, learner: Learner) -> Path:
    save_checkpoint(folder, learner, state_of(learner, 1))
    return folder


def trained_adapters(folder: Path) -> Path:
    """DoRA adapters after two steps, with every setting unlike its default."""
    config = config_of(**MADE_WITH, learning_rate=1e-2)
    return save(folder, learner_of(config, steps=2))


def of_mlx_lm(folder: Path, num_layers: int = -1, keys: list[str] | None = None) -> Path:
    """What mlx-lm's own trainer writes: by default it does not say which modules it adapted."""
    model = load_model(str(tiny_model()), lambda message: None).model
    model.freeze()
    parameters: dict[str, Any] = {"rank": 8, "scale": 20.0, "dropout": 0.0}
    wanted = {**parameters, "keys": keys} if keys else parameters
    linear_to_lora_layers(model, num_layers, wanted)
    mx.random.seed(3)
    weights = {n: mx.random.normal(w.shape) for n, w in leaves(model.trainable_parameters())}
    folder.mkdir()
    mx.save_safetensors(str(folder / WEIGHTS), weights)
    written = {"num_layers": num_layers, "lora_parameters": parameters, "batch_size": 4}
    (folder / CONFIG).write_text(json.dumps(written))
    return folder


def changed(**values: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / CONFIG
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return damage


def parameter(**values: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        before = json.loads((folder / CONFIG).read_text())["lora_parameters"]
        merged = {k: v for k, v in {**before, **values}.items() if v is not None}
        changed(lora_parameters=merged)(folder)

    return damage


def tensor(change: Callable[[dict[str, mx.array], str], Any]) -> Callable[[Path], None]:
    """Changes the first of the tensors."""

    def damage(folder: Path) -> None:
        tensors = read_tensors(folder / WEIGHTS)
        change(tensors, min(tensors))
        write_tensors(folder / WEIGHTS, tensors)

    return damage


def poison(value: float) -> Callable[[Path], None]:
    def change(tensors: dict[str, mx.array], name: str) -> None:
        tensors[name] = mx.where(mx.arange(tensors[name].shape[-1]) == 2, value, tensors[name])

    return tensor(change)
