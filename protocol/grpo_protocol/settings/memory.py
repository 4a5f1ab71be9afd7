"""How much is computed at once. Nothing here changes what is computed."""

from typing import Annotated

from grpo_protocol.settings.generation import GenerationSettings
from grpo_protocol.settings.kinds import Count, key


class MemorySettings(GenerationSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Group `Memory`."""

    gradient_checkpointing: Annotated[
        bool,
        key(
            "Memory",
            "Keep only the input of each layer for the gradient and compute the rest once more.",
        ),
    ] = False
    forward_chunk_size: Annotated[
        Count | None,
        key(
            "Memory",
            "Most completions that go through the model together when they are scored and trained "
            "on; without it as many as 512 MiB of activations, or an eighth of a GPU, allow.",
        ),
    ] = None
    lm_head_chunk_size: Annotated[
        Count | None,
        key(
            "Memory",
            "Most completions whose logits are made at once when they are scored and trained on; "
            "logits are never more than 2^25.",
        ),
    ] = None
    vocab_chunk_size: Annotated[
        Count | None,
        key(
            "Memory",
            "Vocabulary entries that log-probs and entropies are summed over at once; all without "
            "it.",
        ),
    ] = None
    use_parallel_batch_generation: Annotated[
        bool, key("Memory", "Decode completions together; false is one at a time, and slow.")
    ] = True
    generation_chunk_size: Annotated[
        Count | None,
        key(
            "Memory",
            "Most completions decoded together; without it all of a sampling phase.",
        ),
    ] = None
