"""Random tiny models of mlx-lm's text architectures, by name, in float32.

Windows are shorter than the prompts of the tests, and weights so loud that every token of the
context shows in the logits: a wrong mask, position or state cannot hide.
"""

import functools
import importlib
import json
import math
import shutil
import tomllib
from pathlib import Path
from typing import Any

import mlx.core as mx

from grpo_trainer.tensor_file import write_tensors
from grpo_trainer.trees import leaves
from tiny_model import BUNDLED, EOS_ID
from tiny_model import VOCABULARY as TOKENIZER_VOCABULARY

VOCABULARY = 128
WINDOW = 8

# What most architectures name alike; each takes the settings that it knows.
_ALIKE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "sliding_window": WINDOW,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_OWN: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())

ARCHITECTURES = tuple(_OWN)
"""Names of the architectures, which are those of their modules in mlx_lm.models."""


@functools.cache
def architecture(name: str) -> Any:
    """The model, with the same weights every time. Tests share it and leave it as it is."""
    return make_architecture(name)


def make_architecture(name: str, **others: Any) -> Any:
    """A model of one's own, with `others` in place of the usual settings."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(11)
    model = module.Model(module.ModelArgs.from_dict({**config_of(name), **others}))
    _make_loud(model)
    model.set_dtype(mx.float32)
    model.eval()
    mx.eval(model.parameters())
    return model


def make_architecture_folder(folder: Path, name: str) -> Path:
    """The model as files, with the tokenizer of the bundled one and as many tokens as it has."""
    folder.mkdir()
    for path in BUNDLED.glob("tokenizer*.json"):
        shutil.copy(path, folder)
    config = config_of(name)
    for part in (config, config.get("text_config", {})):
        part |= dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), TOKENIZER_VOCABULARY)
        part.pop("rope_scaling", None)  # transformers warns of it
    config["eos_token_id"] = EOS_ID
    weights = dict(leaves(make_architecture(name, **config).parameters()))
    write_tensors(folder / "model.safetensors", weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def config_of(name: str) -> dict[str, Any]:
    """What `config.json` would hold."""
    own = _OWN[name]
    alike = {"model_type": name, **_ALIKE}
    if "text_config" in own:
        return {**alike, "text_config": {**alike, **own["text_config"]}}
    return {**alike, **own}


def _make_loud(model: Any) -> None:
    """Layers say more than the embedding that they are added to, and no weight is 0 or 1."""
    for _, module in model.named_modules():
        for name, value in module.items():
            if not isinstance(value, mx.array) or not mx.issubdtype(value.dtype, mx.floating):
                continue
            noise = mx.random.normal(value.shape)
            if name == "weight" and value.ndim > 1:
                module[name] = _scale(module, value) * noise
            else:
                module[name] = value + 0.1 * noise


def _scale(module: Any, weight: mx.array) -> float:
    """By the number of inputs that each output sums over."""
    kind = type(module).__name__
    if kind == "Embedding":
        return 0.25
    return 1.2 * math.sqrt(1 / weight.shape[1 if kind == "Conv1d" else -1])
