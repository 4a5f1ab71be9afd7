"""Finds out on a few short rows how a model may be decoded and trained without a wrong number.

Architectures differ in what their caches can do: some cannot hold several rows, some read one row's
position for all of them, and some compute something else without a cache than with one. Every way
to compute a row's logits is therefore compared with the plainest, one full forward pass of that row
alone. Shapes: B rows, T tokens of a row, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from msgspec.structs import replace

from grpo_protocol.config import GRPOConfig
from grpo_trainer.errors import MODEL_FAULTS, ModelError, first_line
from grpo_trainer.fresh_caches import make_fresh_caches
from grpo_trainer.machine_memory import is_on_cpu
from grpo_trainer.number_format import coarsest_format
from grpo_trainer.prompt_reading import read_prompts, row_keeper
from grpo_trainer.row_batches import DecodingMode, row_batches
from grpo_trainer.trees import number

LONGEST_ROW = 160
"""Tokens that a row of the probe may have, so that windows shorter than that come into play."""

_MODES: tuple[DecodingMode, ...] = ("together", "equal lengths", "alone")
"""The fastest first."""
_SHORT_PROMPTS = (1, 4, 4, 9)
"""Their lengths: two are read in one pass."""
_FORCED = 4
_LEAVING_AFTER = (2, _FORCED)
"""Forced tokens after which the rows of a group leave."""
_ON_A_CPU = {"float32": 1e-3, "tf32": 0.3, "float16": 0.05, "bfloat16": 0.2}
_ON_A_GPU = {"float32": 1e-3, "tf32": 0.3, "float16": 0.3, "bfloat16": 0.75}


@dataclass(frozen=True)
class Decoding:
    """What is safe with one model. An obstacle says in one line what came out wrong."""

    model_type: str = ""
    mode: DecodingMode = "together"
    """The fastest way to decode that is right, of those that were asked for."""
    together_obstacle: str | None = None
    """Why rows of any prompts cannot share a forward pass while decoding."""
    padding_obstacle: str | None = None
    """Why rows of unlike lengths cannot share a forward pass in training."""

    @property
    def padded(self) -> bool:
        """Whether training may pad rows on the right; without it every row needs its own pass."""
        return self.padding_obstacle is None

    def settings_for(self, config: GRPOConfig) -> GRPOConfig:
        """`config` without what this model cannot do."""
        if not self.padded:
            config = replace(config, forward_chunk_size=1)
        if self.mode == "alone":
            config = replace(
                config, use_parallel_batch_generation=False, generation_chunk_size=None
            )
        return config

    @property
    def warnings(self) -> list[str]:
        """One line for each thing that will be slower than asked for."""
        told = []
        if self.together_obstacle is not None:
            slow = {
                "equal lengths": "prompts of unlike lengths are decoded one after the other, each "
                "with all of its completions, which is slower",
                "alone": "completions are decoded one at a time, which is slow",
            }[self.mode]
            told.append(
                f"model_type={self.model_type!r}: {slow}; decoding them together "
                f"{self.together_obstacle}"
            )
        if self.padding_obstacle is not None:
            told.append(
                f"model_type={self.model_type!r}: rows are trained one at a time, which is slow; "
                f"padding them to one length {self.padding_obstacle}"
            )
        return told


@dataclass(frozen=True)
class _Row:
    """A prompt, and the tokens that are forced on it."""

    prompt: list[int]
    forced: list[int]
    expected_T_V: mx.array
    """Logits before each forced token, from a full forward pass of this row alone."""


def how_to_decode(model: Any, *, together: bool = True, longest: int = LONGEST_ROW) -> Decoding:
    """The fastest way to sample from `model` that is right, and whether training may pad.

    Takes a few forward passes over short rows; weights, mode and the random state stay as they
    are. Rows reach beyond the model's window where that takes no more than `longest` tokens; a
    longer window is not tried out. `together=False` does not ask for more than one row at a time.

    A model that computes something else without a cache than with one, but the same in one pass
    as token by token when it has one, makes itself a fresh one from now on: see `fresh_caches`.
    Raises `ModelError` when even one row alone decodes otherwise than training would score it.
    """
    name = _model_type(model)
    was_training = model.training
    model.eval()
    try:
        modes = _MODES if together else _MODES[-1:]
        found = obstacle = _tried(model, name, modes, longest)
        if isinstance(found, str):
            undo = make_fresh_caches(model)
            with suppress(ModelError):
                found = _tried(model, name, modes, longest)
            if isinstance(found, str):
                undo()
                raise ModelError(
                    f"model_type={name!r}: rollouts and training would disagree: decoding with a "
                    f"cache {obstacle}; use another model"
                )
        return found
    finally:
        model.train(was_training)


def _tried(model: Any, name: str, modes: Sequence[DecodingMode], longest: int) -> Decoding | str:
    """The first of `modes` that is right, or what is wrong with the last one when none is."""
    rows, tolerance = _rows(model, name, longest), _tolerance(model)
    obstacle = why_not_first = None
    for mode in modes:
        obstacle = _obstacle(partial(_cached_logits, model, rows, mode), rows, tolerance)
        if obstacle is None:
            ragged = rows[:: len(_LEAVING_AFTER)]
            padded = _obstacle(partial(_padded_logits, model, ragged), ragged, tolerance)
            return Decoding(name, mode, why_not_first, padded)
        why_not_first = why_not_first or obstacle
    assert obstacle is not None
    return obstacle


def _rows(model: Any, name: str, longest: int) -> list[_Row]:
    """Groups of rows for prompts of unlike lengths, on both sides of a short window."""
    try:
        vocabulary = model(mx.array([[0]])).shape[-1]
        lengths = list(_SHORT_PROMPTS)
        for window in set(_windows(make_prompt_cache(model))):
            if window + _FORCED <= longest:
                lengths += [max(1, window - 2), window + 3]
        rows = []
        for number_of_prompt, length in enumerate(sorted(lengths)):
            start = 7 * length + 3 * number_of_prompt
            prompt = [(11 * place + start) % vocabulary for place in range(length)]
            for member in range(len(_LEAVING_AFTER)):
                forced = [
                    (5 * place + 13 * member + length) % vocabulary for place in range(_FORCED)
                ]
                logits_T_V = model(mx.array([prompt + forced]))[0, length - 1 :]
                rows.append(_Row(prompt, forced, logits_T_V.astype(mx.float32)))
        mx.eval([row.expected_T_V for row in rows])
    except MODEL_FAULTS as error:
        raise ModelError(
            f"model_type={name!r}: a forward pass fails: {first_line(error)}; use another model"
        ) from error
    return rows


def _windows(cache: Sequence[Any]) -> Iterator[int]:
    """Tokens that layers look back on, where they do not look back on all."""
    for layer in cache:
        yield from _windows(getattr(layer, "caches", ()))
        for name in ("max_size", "chunk_size"):
            size = getattr(layer, name, None)
            if isinstance(size, int):
                yield size


def _padded_logits(model: Any, rows: Sequence[_Row]) -> list[mx.array]:
    """As training computes them: all rows in one pass, padded on the right with token 0."""
    lines = [row.prompt + row.forced for row in rows]
    width = max(map(len, lines))
    logits_B_T_V = model(mx.array([line + [0] * (width - len(line)) for line in lines]))
    spans = [slice(len(row.prompt) - 1, len(line)) for row, line in zip(rows, lines, strict=True)]
    return [logits[span] for logits, span in zip(logits_B_T_V, spans, strict=True)]


def _cached_logits(model: Any, rows: Sequence[_Row], mode: DecodingMode) -> list[mx.array]:
    """As rows decoded in this mode see them, until each leaves."""
    group_size, keep_rows = len(_LEAVING_AFTER), row_keeper(mode)
    prompts = [row.prompt for row in rows[::group_size]]
    seen: list[list[mx.array]] = [[] for _ in rows]
    for batch in row_batches(prompts, group_size, mode):
        active = batch.row_numbers
        leaving = dict(zip(active, _leaving(len(active), mode), strict=True))
        logits, cache = read_prompts(model, batch.prompts, batch.rows_each, mode)
        for row, line in zip(active, logits, strict=True):
            seen[row].append(line)
        for position in range(_FORCED):
            tokens = mx.array([[rows[row].forced[position]] for row in active])
            logits = model(tokens, cache=cache)[:, -1]
            for row, line in zip(active, logits, strict=True):
                seen[row].append(line)
            going = [place for place, row in enumerate(active) if leaving[row] > position + 1]
            if going and len(going) < len(active):
                keep_rows(cache, mx.array(going))
                active = [active[place] for place in going]
    return [mx.stack(lines) for lines in seen]


def _leaving(num_rows: int, mode: DecodingMode) -> list[int]:
    """Forced tokens after which each row of a batch leaves."""
    size = len(_LEAVING_AFTER)
    leaving = [_LEAVING_AFTER[row % size] for row in range(num_rows)]
    if mode == "together":
        # The longest prompt, which the others are padded to: caches then give its place back.
        leaving[-size:] = [_LEAVING_AFTER[0]] * size
    return leaving


def _obstacle(
    compute: Callable[[], Sequence[mx.array]], rows: Sequence[_Row], tolerance: float
) -> str | None:
    """What is wrong with logits [T, V] of each row, or of its first tokens; None if nothing is."""
    try:
        found = compute()
        worst = max(_distance(line, row) for line, row in zip(found, rows, strict=True))
    except MODEL_FAULTS as error:
        return f"fails: {first_line(error)}"
    if worst <= tolerance:
        return None
    return f"gives logits that are off by {worst:.1%} of their spread"


def _distance(found_T_V: mx.array, row: _Row) -> float:
    """Largest error of a position: root mean square over the vocabulary, of the logits' own."""
    expected = row.expected_T_V[: len(found_T_V)]
    found = found_T_V.astype(mx.float32)
    # A model may mask tokens with -inf itself.
    finite = mx.isfinite(expected)
    count = finite.sum(axis=-1, keepdims=True)
    mean = mx.where(finite, expected, 0).sum(axis=-1, keepdims=True) / count
    spread = mx.where(finite, expected - mean, 0).square().sum(axis=-1)
    error = mx.where(expected == found, 0, found - expected).square().sum(axis=-1)
    worst = number(mx.sqrt(error / mx.maximum(spread, 1e-12)).max())
    return float("inf") if math.isnan(worst) else worst


def _tolerance(model: Any) -> float:
    """By device and coarsest number format.

    Sums in another order are off by 1e-5 of the spread in float32, and on a CPU hardly more in 16
    bits. On a GPU, whose kernels depend on the shape, SmolLM2-135M was off by 1 % in tf32, by 6 %
    with 4-bit weights too, and by up to 28 % in bfloat16. Without its padding mask, or with
    positions off by one, a pretrained model is off by 300 % and more.
    """
    return (_ON_A_CPU if is_on_cpu() else _ON_A_GPU)[coarsest_format(model)]


def _model_type(model: Any) -> str:
    args = getattr(model, "args", None)
    return str(getattr(model, "model_type", None) or getattr(args, "model_type", "unknown"))
