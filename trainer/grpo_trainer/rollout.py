"""Samples completions for a batch of prompts, all rows decoded together.

Each prompt is prefilled once; its cache is copied to the rows of its group. Rows that ended leave
the batch, so the tail of a long completion does not drag the others along. Shapes: P prompts, G
completions each, B = P·G rows still decoding, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from grpo_protocol.messages import FinishReason
from grpo_trainer.randomness import token_keys

PREFILL_CHUNK = 2048

NextToken = Callable[[mx.array, int, mx.array], mx.array]
"""From logits [B, V], the position and the row numbers [B] to token ids [B]."""


class Interrupted(Exception):
    """Sampling was abandoned because the run is to stop."""


@dataclass(frozen=True)
class Completion:
    """The ids that were sampled for one row, EOS included, and why it ended."""

    token_ids: list[int]
    finish_reason: FinishReason


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen and when a row ends."""

    max_tokens: int
    temperature: float
    eos_ids: frozenset[int]
    seed: int = 0


def sample_groups(
    model: Any,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    options: SamplingOptions,
    *,
    step: int,
    first_row: int = 0,
    on_token: Callable[[int, int], None] = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """`group_size` sampled completions for each prompt, in prompt order.

    Row r of step s draws from keys of (seed, s, r) alone. `on_token` hears how many rows have
    ended, of how many, after each token. Raises `Interrupted` when `should_stop` says so.
    """
    num_rows = len(prompts) * group_size
    rows = range(first_row, first_row + num_rows)
    keys_B_T = token_keys(options.seed, step, rows, options.max_tokens)

    def sample(logits: mx.array, position: int, rows: mx.array) -> mx.array:
        return _categorical(logits / options.temperature, keys_B_T[rows, position])

    return _decode(model, prompts, group_size, options, sample, on_token, should_stop)


def decode_greedily(
    model: Any,
    prompts: Sequence[Sequence[int]],
    options: SamplingOptions,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """The most likely completion of each prompt, one row each."""

    def best(logits: mx.array, position: int, rows: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1)

    return _decode(model, prompts, 1, options, best, lambda done, total: None, should_stop)


def _categorical(logits: mx.array, keys: mx.array) -> mx.array:
    """One draw for each row of logits [B, V] with the row's own key of keys [B, 2]."""
    draw: Callable[[mx.array, mx.array], mx.array] = mx.vmap(
        lambda row, key: mx.random.categorical(row, key=key)
    )
    return draw(logits, keys)


def _decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    options: SamplingOptions,
    next_token: NextToken,
    on_token: Callable[[int, int], None],
    should_stop: Callable[[], bool],
) -> list[Completion]:
    num_rows = len(prompts) * group_size
    token_ids: list[list[int]] = [[] for _ in range(num_rows)]
    reasons: list[FinishReason] = ["length"] * num_rows
    active = list(range(num_rows))
    logits, cache = _prefill(model, prompts, group_size)
    tokens = next_token(logits, 0, mx.array(active))
    for position in range(options.max_tokens):
        following = None
        if position + 1 < options.max_tokens:
            # The next step is queued before this one's tokens are looked at, so that the device
            # does not wait for Python.
            logits = model(tokens[:, None], cache=cache)[:, -1].astype(mx.float32)
            following = next_token(logits, position + 1, mx.array(active))
            mx.async_eval(following)
        going = _append(_to_list(tokens), active, token_ids, reasons, options.eos_ids)
        on_token(num_rows - len(going), num_rows)
        if should_stop():
            raise Interrupted
        if not going or following is None:
            break
        tokens, active = _drop_ended(following, active, going, cache)
    return [Completion(ids, reason) for ids, reason in zip(token_ids, reasons, strict=True)]


def _to_list(tokens: mx.array) -> list[int]:
    return cast("list[int]", tokens.tolist())


def _append(
    tokens: list[int],
    active: list[int],
    token_ids: list[list[int]],
    reasons: list[FinishReason],
    eos_ids: frozenset[int],
) -> list[int]:
    """Stores one token for each active row; returns places in `active` that go on."""
    going = []
    for place, (row, token) in enumerate(zip(active, tokens, strict=True)):
        token_ids[row].append(token)
        if token in eos_ids:
            reasons[row] = "stop"
        else:
            going.append(place)
    return going


def _drop_ended(
    tokens: mx.array, active: list[int], going: list[int], cache: list[Any]
) -> tuple[mx.array, list[int]]:
    if len(going) == len(active):
        return tokens, active
    keep = mx.array(going)
    for layer in cache:
        layer.filter(keep)
    return tokens[keep], [active[place] for place in going]


def _prefill(
    model: Any, prompts: Sequence[Sequence[int]], group_size: int
) -> tuple[mx.array, list[Any]]:
    """Logits [B, V] after each prompt, and a batched cache for every layer.

    Prompts of different lengths never share a forward pass, so none ever attends to padding.
    """
    read = [_prefill_one(model, prompt) for prompt in prompts]
    logits = mx.concatenate([logits for logits, _ in read for _ in range(group_size)])
    rows = [cache for _, cache in read for _ in range(group_size)]
    return logits, [layer[0].merge(list(layer)) for layer in zip(*rows, strict=True)]


def _prefill_one(model: Any, prompt: Sequence[int]) -> tuple[mx.array, list[Any]]:
    cache = make_prompt_cache(model)
    ids = mx.array(list(prompt))[None]
    while ids.shape[1] > PREFILL_CHUNK:
        model(ids[:, :PREFILL_CHUNK], cache=cache)
        mx.eval([layer.state for layer in cache])
        ids = ids[:, PREFILL_CHUNK:]
    return model(ids, cache=cache)[:, -1].astype(mx.float32), cache
