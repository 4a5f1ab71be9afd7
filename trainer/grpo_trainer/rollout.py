"""Samples completions for a batch of prompts: all rows together, some at a time, or one by one.

Each prompt is prefilled once for the rows that are decoded at once; its cache is copied to them.
Rows that ended leave the batch, so the tail of a long completion does not drag the others along.
What a row is does not depend on the rows that it is decoded with. Shapes: P prompts, G completions
each, B rows still decoding, V vocabulary, H tokens that penalties look back on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import mlx.core as mx

from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import FinishReason
from grpo_trainer.distribution import Distribution, last_tokens
from grpo_trainer.prompt_reading import read_prompts, row_keeper
from grpo_trainer.randomness import token_keys
from grpo_trainer.row_batches import DecodingMode, RowBatch, row_batches
from grpo_trainer.row_endings import Ending, Endings


class _Drawn(NamedTuple):
    """One token for each row [B]; log-probabilities [B] unless it was simply the best."""

    tokens_B: mx.array
    logprobs_B: mx.array | None = None


class _State(NamedTuple):
    """What the next token of each row depends on."""

    logits_B_V: mx.array
    history_B_H: mx.array | None


Draw = Callable[[_State, int, mx.array], _Drawn]
"""From the state, the position and the row numbers [B] to one token for each row."""


class Interrupted(Exception):
    """Sampling was abandoned because the run is to stop."""


@dataclass(frozen=True)
class Completion:
    """The ids that were sampled for one row, those that ended it included, and why it ended."""

    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[float] = field(default_factory=list)
    """Of each id under the distribution that it was drawn from, in nats; empty when greedy."""
    stop_text: str | None = None
    """The stop string that ended it; None for an end token and for every other reason."""

    @property
    def is_truncated(self) -> bool:
        """Whether it did not come to an end of its own."""
        return self.finish_reason != "stop"

    @property
    def is_at_limit(self) -> bool:
        """Whether `max_completion_length` cut it."""
        return self.finish_reason == "length"

    @property
    def is_repetitive(self) -> bool:
        """Whether the cut-off for repetition ended it."""
        return self.finish_reason == "repetition"


@dataclass(frozen=True)
class SamplingOptions:
    """How the next token is chosen and when a row ends."""

    max_tokens: int
    distribution: Distribution = field(default_factory=Distribution)
    endings: Endings = field(default_factory=Endings)
    seed: int = 0
    mode: DecodingMode = "together"
    """Which rows may share a forward pass: what the model's caches are right for."""
    chunk_size: int | None = None
    """Most rows that are decoded at once; None for all that may be."""

    @classmethod
    def of(
        cls, config: GRPOConfig, tokenizer: Any, *, mode: DecodingMode = "together"
    ) -> "SamplingOptions":
        """As `config` says, for a model with this tokenizer that can be decoded in this `mode`."""
        return cls(
            max_tokens=config.max_completion_length,
            distribution=Distribution.of(config),
            endings=Endings.of(config, tokenizer),
            seed=config.seed,
            mode=mode if config.use_parallel_batch_generation else "alone",
            chunk_size=config.generation_chunk_size,
        )


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

    def draw(state: _State, position: int, rows: mx.array) -> _Drawn:
        logits = options.distribution.logits(state.logits_B_V, state.history_B_H)
        tokens = _categorical(logits, keys_B_T[rows, position])
        chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
        return _Drawn(tokens, chosen - mx.logsumexp(logits, axis=-1))

    return _decode(model, prompts, group_size, options, draw, on_token, should_stop)


def decode_greedily(
    model: Any,
    prompts: Sequence[Sequence[int]],
    options: SamplingOptions,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """The completion of each prompt that takes the best token every time, one row each.

    Of `options.distribution` only the penalties count.
    """

    def best(state: _State, position: int, rows: mx.array) -> _Drawn:
        scores = options.distribution.penalized(state.logits_B_V, state.history_B_H)
        return _Drawn(mx.argmax(scores, axis=-1))

    return _decode(model, prompts, 1, options, best, lambda done, total: None, should_stop)


def _categorical(logits: mx.array, keys: mx.array) -> mx.array:
    """One draw for each row of logits [B, V] with the row's own key of keys [B, 2]."""
    draw: Callable[[mx.array, mx.array], mx.array] = mx.vmap(
        lambda row, key: mx.random.categorical(row, key=key)
    )
    return draw(logits, keys)


class _Row:
    """A completion in the making."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ending = Ending("length")

    def finished(self) -> Completion:
        return Completion(self.token_ids, self.ending.reason, self.logprobs, self.ending.stop_text)


def _decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    options: SamplingOptions,
    draw: Draw,
    on_token: Callable[[int, int], None],
    should_stop: Callable[[], bool],
) -> list[Completion]:
    rows = [_Row() for _ in range(len(prompts) * group_size)]
    waiting = len(rows)

    def after_token(num_going: int) -> None:
        on_token(len(rows) - waiting - num_going, len(rows))
        if should_stop():
            raise Interrupted

    for batch in row_batches(prompts, group_size, options.mode, options.chunk_size):
        waiting -= len(batch.row_numbers)
        _decode_batch(model, batch, rows, options, draw, after_token)
    return [row.finished() for row in rows]


def _decode_batch(
    model: Any,
    batch: RowBatch,
    rows: Sequence[_Row],
    options: SamplingOptions,
    draw: Draw,
    after_token: Callable[[int], None],
) -> None:
    """Fills the batch's own of all `rows`; `after_token` hears how many of them go on."""
    active = batch.row_numbers
    logits, cache = read_prompts(model, batch.prompts, batch.rows_each, options.mode)
    keep_rows = row_keeper(options.mode)
    history = _prompt_history(batch.prompts, batch.rows_each, options.distribution.history_size)
    drawn = draw(_State(logits, history), 0, mx.array(active))
    for position in range(options.max_tokens):
        following = None
        if position + 1 < options.max_tokens:
            # The next step is queued before this one's tokens are looked at, so that the device
            # does not wait for Python.
            logits = model(drawn.tokens_B[:, None], cache=cache)[:, -1]
            history = _with_tokens(history, drawn.tokens_B)
            following = draw(_State(logits, history), position + 1, mx.array(active))
            mx.async_eval(*following)
        going = _append(drawn, [rows[row] for row in active], options.endings)
        after_token(0 if following is None else len(going))
        if not going or following is None:
            break
        drawn = following
        if len(going) < len(active):
            keep_rows(cache, mx.array(going))
            drawn, history = _keep(going, drawn, history)
            active = [active[place] for place in going]


def _append(drawn: _Drawn, rows: Sequence[_Row], endings: Endings) -> list[int]:
    """Stores one token for each of the active rows; returns the places of those that go on."""
    going = []
    tokens = cast("list[int]", drawn.tokens_B.tolist())
    for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        row.token_ids.append(token)
        ending = endings.after(row.token_ids)
        if ending is None:
            going.append(place)
        else:
            row.ending = ending
    if drawn.logprobs_B is not None:
        logprobs = cast("list[float]", drawn.logprobs_B.tolist())
        for row, logprob in zip(rows, logprobs, strict=True):
            row.logprobs.append(logprob)
    return going


def _keep(
    going: list[int], drawn: _Drawn, history: mx.array | None
) -> tuple[_Drawn, mx.array | None]:
    """Both without the rows that ended."""
    keep = mx.array(going)
    logprobs = None if drawn.logprobs_B is None else drawn.logprobs_B[keep]
    return _Drawn(drawn.tokens_B[keep], logprobs), None if history is None else history[keep]


def _prompt_history(
    prompts: Sequence[Sequence[int]], group_size: int, size: int
) -> mx.array | None:
    """[B, H]: the last tokens of each row's prompt; None when nothing looks back."""
    if not size:
        return None
    return mx.array([last_tokens(list(ids), size) for ids in prompts for _ in range(group_size)])


def _with_tokens(history: mx.array | None, tokens_B: mx.array) -> mx.array | None:
    """The history one token later."""
    if history is None:
        return None
    return mx.concatenate([history[:, 1:], tokens_B[:, None].astype(history.dtype)], axis=1)
