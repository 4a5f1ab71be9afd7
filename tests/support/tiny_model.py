"""Random two-layer models as mlx-lm folders, with the tokenizer of the bundled model.

Small enough to train in milliseconds, real enough that nothing else has to be faked.
"""

import atexit
import functools
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.models import llama, qwen3, qwen3_moe
from mlx_lm.utils import load_model, quantize_model

import grpo_trainer.demo
from grpo_trainer.tensor_file import write_tensors
from grpo_trainer.trees import leaves

Kind = Literal["qwen3", "llama", "qwen3_moe"]

BUNDLED = Path(grpo_trainer.demo.__file__).parent / "model"
EOS_ID = 258
VOCABULARY = 266

_CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
    "eos_token_id": EOS_ID,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}


@functools.cache
def tiny_model(kind: Kind = "qwen3", dtype: str = "float32") -> Path:
    """A folder that all tests of the session share: read it, never write into it."""
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{kind}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_model(folder, kind, dtype)


@functools.cache
def tiny_quantized(
    kind: Kind = "qwen3", mode: str = "affine", bits: int = 4, group_size: int = 32
) -> Path:
    """The same with quantized weights, also shared."""
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{kind}-{mode}-{bits}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return quantize(make_model(folder, kind), mode, bits, group_size)


def quantize(folder: Path, mode: str = "affine", bits: int = 4, group_size: int = 32) -> Path:
    """Quantizes the model in `folder`, as `mlx_lm.convert -q` does."""
    model, config = load_model(folder)
    model, config = quantize_model(model, config, group_size, bits, mode=mode)
    write_tensors(folder / "model.safetensors", dict(leaves(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_model(
    folder: Path,
    kind: Kind = "qwen3",
    dtype: str = "float32",
    eos: Sequence[int] | int = EOS_ID,
    **changes: Any,
) -> Path:
    """Writes a model with the same random weights every time; `changes` are of its config."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in BUNDLED.glob("tokenizer*.json"):
        shutil.copy(path, folder)
    experts = _EXPERTS if kind == "qwen3_moe" else {}
    config = {"model_type": kind, **_CONFIG, **experts, **changes}
    mx.random.seed(7)
    architecture: Any = {"qwen3": qwen3, "llama": llama, "qwen3_moe": qwen3_moe}[kind]
    model = architecture.Model(architecture.ModelArgs.from_dict(config))
    for layer in model.layers:
        # Louder than the embedding that they are added to: a random model with tied embeddings
        # would only repeat its last token.
        last = layer.mlp.switch_mlp.down_proj if experts else layer.mlp.down_proj
        for projection in (layer.self_attn.o_proj, last):
            projection.weight = 12 * projection.weight
    model.set_dtype(getattr(mx, dtype))
    write_tensors(folder / "model.safetensors", dict(leaves(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    return folder
