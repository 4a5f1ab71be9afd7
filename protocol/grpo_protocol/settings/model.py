"""The model, what of it is trained, and the data and rewards that it learns from."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from grpo_protocol.settings.kinds import Count, Fraction, NotNegative, Positive, key

FineTuneType = Literal["lora", "dora", "full"]
ADAPTER_TYPES = frozenset({"lora", "dora"})
"""Kinds of fine-tuning that leave the model's own weights as they are."""


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Groups `Model`, `Data` and `Rewards`."""

    # --- model
    model: Annotated[
        str | None, key("Model", "Folder of an mlx-lm model, or its Hugging Face hub id.")
    ] = None
    model_name: Annotated[
        str | None, key("Model", "Name shown and recorded; the last part of `model` without it.")
    ] = None
    fine_tune_type: Annotated[
        FineTuneType,
        key(
            "Model",
            "Train low-rank adapters (dora: with a size for each output), on a float or quantized "
            "model, or every weight of a float model.",
        ),
    ] = "lora"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        key(
            "Model",
            "Precision of rollouts and of frozen weights; auto is float32 on the CPU and the "
            "file's own elsewhere. Trained weights are float32 always.",
        ),
    ] = "auto"
    lora_rank: Annotated[
        Annotated[int, Meta(ge=1, le=2**16)], key("Model", "Rank of the low-rank adapters.")
    ] = 8
    lora_scale: Annotated[
        Positive, key("Model", "Factor on the adapters' product B·A; mlx-lm's default is 20.")
    ] = 20.0
    lora_dropout: Annotated[
        Fraction, key("Model", "Dropout inside the adapters while training.")
    ] = 0.0
    lora_layers: Annotated[
        int, key("Model", "Number of last layers that get adapters; -1 for all.")
    ] = -1

    lora_keys: Annotated[
        list[str],
        key(
            "Model",
            "Modules that get adapters: of each layer, such as self_attn.q_proj, or of the model, "
            "such as lm_head; without it every module of the layers that can.",
        ),
    ] = msgspec.field(default_factory=list)
    adapter_path: Annotated[
        str | None,
        key(
            "Model",
            "mlx-lm adapter folder to start from; kind, rank, scale, keys and layers are its own.",
        ),
    ] = None

    # --- data and rewards
    data: Annotated[
        str | None, key("Data", "Dataset: a .jsonl or .json file with a `prompt` in each row.")
    ] = None
    eval_data: Annotated[
        str | None, key("Data", "Held-out dataset, decoded greedily in evaluations.")
    ] = None
    shuffle: Annotated[
        bool, key("Data", "A new order of the prompts for each epoch, derived from the seed.")
    ] = True
    max_prompt_length: Annotated[
        Count | None,
        key(
            "Data",
            "Most tokens of a prompt; a longer one is refused at the start. No limit without it.",
        ),
    ] = None
    enable_thinking: Annotated[
        bool | None,
        key("Data", "Whether the chat template lets the model think; its own default without it."),
    ] = None
    reward: Annotated[
        list[str],
        key("Rewards", "Reward functions: FILE.py for all of them in it, or FILE.py:NAME."),
    ] = msgspec.field(default_factory=list)
    reward_weights: Annotated[
        list[float] | None, key("Rewards", "One weight for each reward function; 1 without it.")
    ] = None
    reward_timeout: Annotated[
        NotNegative, key("Rewards", "Seconds that one round of scoring may take; 0 for no limit.")
    ] = 60.0
