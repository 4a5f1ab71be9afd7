"""Reads prompts into the cache that completions are decoded from.

A prompt is read once for all of its completions that are decoded together. Prompts of equal length
are read together; those of different lengths never share a forward pass, so none ever attends to
padding. Shapes: P prompts, G completions each, B = P·G rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from grpo_trainer.cache_rows import keep_rows_of_batch, keep_rows_of_plain
from grpo_trainer.row_batches import DecodingMode, places_by_length

TOKENS_AT_ONCE = 8192
"""Tokens in one forward pass, over all its prompts: bounds the memory of the activations."""


def read_prompts(
    model: Any, prompts: Sequence[Sequence[int]], group_size: int, mode: DecodingMode
) -> tuple[mx.array, list[Any]]:
    """Logits [B, V] after each prompt, and a cache for every layer, rows by prompt.

    All of one length unless rows are decoded together, and a single row if alone: then it asks
    nothing of a cache but to be filled, so it is right for every kind of it.
    """
    if mode == "together":
        return _read_into_batch(model, prompts, group_size)
    cache = make_prompt_cache(model)
    logits = _read(model, mx.array([list(prompt) for prompt in prompts]), cache)
    if group_size > 1:
        rows = mx.repeat(mx.arange(len(prompts)), group_size)
        keep_rows_of_plain(cache, rows)
        logits = logits[rows]
    return logits, cache


def row_keeper(mode: DecodingMode) -> Callable[[Sequence[Any], mx.array], None]:
    """What leaves some rows, in a given order, in a cache that was filled in this mode."""
    return keep_rows_of_batch if mode == "together" else keep_rows_of_plain


def _read_into_batch(
    model: Any, prompts: Sequence[Sequence[int]], group_size: int
) -> tuple[mx.array, list[Any]]:
    by_length = places_by_length(prompts)
    read = [_read_equals(model, [prompts[place] for place in places]) for places in by_length]
    order = [place for places in by_length for place in places]
    found_at = {place: index for index, place in enumerate(order)}
    rows = mx.array([found_at[place] for place in range(len(prompts)) for _ in range(group_size)])
    _, cache = read[0]
    for _, more in read[1:]:
        for layer, other in zip(cache, more, strict=True):
            layer.extend(other)
    keep_rows_of_batch(cache, rows)
    return mx.concatenate([logits for logits, _ in read])[rows], cache


def _read_equals(model: Any, prompts: Sequence[Sequence[int]]) -> tuple[mx.array, list[Any]]:
    """Logits [P, V] and the batch cache after prompts of one length."""
    layers = zip(*(make_prompt_cache(model) for _ in prompts), strict=True)
    cache = [layer[0].merge(list(layer)) for layer in layers]
    return _read(model, mx.array([list(prompt) for prompt in prompts]), cache), cache


def _read(model: Any, ids_P_T: mx.array, cache: list[Any]) -> mx.array:
    """Logits [P, V] after the ids, which end up in `cache`."""
    size = max(1, TOKENS_AT_ONCE // len(ids_P_T))
    while ids_P_T.shape[1] > 1:
        size = min(size, ids_P_T.shape[1] - 1)
        # The logits of these positions are never asked for, so they are never computed.
        model(ids_P_T[:, :size], cache=cache)
        mx.eval([layer.state for layer in cache])
        ids_P_T = ids_P_T[:, size:]
    logits: mx.array = model(ids_P_T, cache=cache)[:, -1]
    return logits
