"""Turns examples into the token ids that the model reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_protocol import ConfigError
from grpo_trainer.dataset import Example


@dataclass(frozen=True)
class EncodedPrompt:
    """One example ready for sampling."""

    example: Example
    token_ids: list[int]


def encode_prompts(
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    enable_thinking: bool | None = None,
    max_length: int | None = None,
) -> list[EncodedPrompt]:
    """Token ids of every prompt. Raises `ConfigError` naming the example that cannot be used."""
    encoded = []
    for example in examples:
        ids = _encode(example, tokenizer, enable_thinking)
        if not ids:
            raise ConfigError(f"{example.source}: the prompt has no tokens; give it some text")
        if max_length is not None and len(ids) > max_length:
            raise ConfigError(
                f"{example.source}: the prompt has {len(ids)} tokens, more than "
                f"max_prompt_length={max_length}; shorten it or raise the limit"
            )
        encoded.append(EncodedPrompt(example, ids))
    return encoded


def _encode(example: Example, tokenizer: Any, enable_thinking: bool | None) -> list[int]:
    if isinstance(example.prompt, str):
        return list(tokenizer.encode(example.prompt))
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"{example.source}: the prompt is a list of messages, but the model's tokenizer has no "
            "chat template; use plain text prompts, or add chat_template.jinja to the model folder"
        )
    options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    # The template writes its own begin-of-text, so the tokenizer must not add a second one.
    return list(
        tokenizer.apply_chat_template(
            example.raw_prompt,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **options,
        )
    )
