"""Finds every token that ends a completion: a model's files name them in up to four places."""

import json
from pathlib import Path
from typing import Any

_ANSWER = "grpo-turn-content"
_CONVERSATION = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]


def end_token_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """The ids that the tokenizer, config.json, generation_config.json or the chat template name.

    `tokenizer` is mlx-lm's wrapper. A file that is missing or cannot be read names none.
    """
    ids = set(tokenizer.eos_token_ids) | _ids_of(tokenizer.eos_token_id)
    for name in ("config.json", "generation_config.json"):
        ids |= _ids_of(_read(folder / name).get("eos_token_id"))
    turn_end = turn_end_id(tokenizer)
    return frozenset(ids if turn_end is None else ids | {turn_end})


def turn_end_id(tokenizer: Any) -> int | None:
    """The special or added token that the chat template puts right after an assistant's content."""
    try:
        text = tokenizer.apply_chat_template(_CONVERSATION, tokenize=False)
    except Exception:
        # There may be no template, and one is a program of the model's author: it may refuse this
        # conversation in any way. Its turn end is only one of the places that name end tokens.
        return None
    _, found, after = str(text).rpartition(_ANSWER)
    added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    starts = [content for content in added if content.strip() and after.startswith(content)]
    return added[max(starts, key=len)] if found and starts else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _ids_of(value: Any) -> set[int]:
    """The ids in one id or a list of them."""
    values = value if isinstance(value, list | tuple | set) else [value]
    return {item for item in values if type(item) is int and item >= 0}
