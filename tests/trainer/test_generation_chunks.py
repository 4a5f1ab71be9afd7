"""How many rows are decoded at once changes memory and time, never the rows."""

import functools
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, get_args

import mlx.core as mx
import pytest

from architectures import VOCABULARY, architecture
from grpo_protocol.config import GRPOConfig
from grpo_trainer import evaluation, group_sampling
from grpo_trainer.distribution import Distribution
from grpo_trainer.evaluation import Evaluator
from grpo_trainer.group_sampling import GroupSampler
from grpo_trainer.plan import PlannedWindow
from grpo_trainer.rollout import (
    Completion,
    Interrupted,
    SamplingOptions,
    decode_greedily,
    sample_groups,
)
from grpo_trainer.row_batches import DecodingMode
from grpo_trainer.row_endings import Endings

PROMPTS = [
    [(7 * row + 3 * place + 1) % VOCABULARY for place in range(n)]
    for row, n in enumerate((1, 3, 11, 30, 3))
]
GROUP = 3
ENDS = Endings(eos_ids=frozenset(range(0, VOCABULARY, 9)))
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "presence_penalty": 0.4}
WAYS: dict[str, dict[str, Any]] = {
    "1": {"chunk_size": 1},
    "2": {"chunk_size": 2},
    "3": {"chunk_size": 3},
    "8": {"chunk_size": 8},
    "100": {"chunk_size": 100},
    "all": {},
    "by length": {"mode": "equal lengths"},
    "by length, 4": {"mode": "equal lengths", "chunk_size": 4},
    "by length, 2": {"mode": "equal lengths", "chunk_size": 2},
    "one at a time": {"mode": "alone"},
    "one at a time whatever the size": {"mode": "alone", "chunk_size": 8},
}
MODES: tuple[DecodingMode, ...] = get_args(DecodingMode)
each_way = pytest.mark.parametrize("way", WAYS)
CHUNKS = {
    "1": [1] * 15,
    "2": [2, 1] * 5,
    "3": [3] * 5,
    "8": [6, 6, 3],
    "100": [15],
    "all": [15],
    "by length": [3, 6, 3, 3],
    "by length, 4": [3] * 5,
    "by length, 2": [2, 1] * 5,
    "one at a time": [1] * 15,
    "one at a time whatever the size": [1] * 15,
}


class Counted:
    """Notes how many rows a pass has at most, and how many prompt tokens are read in all."""

    def __init__(self) -> None:
        self.model = architecture("llama")
        self.most_rows = 0
        self.tokens_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        self.most_rows = max(self.most_rows, len(ids))
        self.tokens_read += ids.size if ids.shape[1] > 1 else 0
        logits: mx.array = self.model(ids, cache=cache)
        return logits


def options(**others: Any) -> SamplingOptions:
    distribution = Distribution(**PENALTIES)
    return SamplingOptions(12, **{"distribution": distribution, "endings": ENDS, **others})


@functools.cache
def sampled(name: str, way: str) -> list[Completion]:
    choice = options(**WAYS[way])
    return sample_groups(architecture(name), PROMPTS, GROUP, choice, step=4, first_row=6)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "all"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_5", "falcon_h1"])
def test_the_rows_do_not_depend_on_how_many_are_decoded_at_once(name: str, way: str) -> None:
    whole, found = sampled(name, "all"), sampled(name, way)
    assert len({len(completion.token_ids) for completion in whole}) > 3
    assert len(found) == len(whole)
    for one, other in zip(found, whole, strict=True):
        assert (one.token_ids, one.finish_reason) == (other.token_ids, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@each_way
def test_greedy_rows_do_not_either(way: str) -> None:
    model = architecture("llama")
    assert decode_greedily(model, PROMPTS, options(**WAYS[way])) == decode_greedily(
        model, PROMPTS, options()
    )


@each_way
def test_no_more_rows_are_decoded_at_once_than_asked_for(way: str) -> None:
    """Groups stay whole as far as they fit, and are then read once."""
    model, ended = Counted(), [0]
    never = options(endings=Endings(), **WAYS[way])
    sample_groups(
        model, PROMPTS, GROUP, never, step=1, on_token=lambda done, total: ended.append(done)
    )
    assert [after - before for before, after in pairwise(ended) if after > before] == CHUNKS[way]
    assert model.most_rows == max(CHUNKS[way])
    parts = -(-GROUP // max(CHUNKS[way]))
    # The last token of a prompt is read on its own.
    assert model.tokens_read == parts * sum(
        len(prompt) - 1 for prompt in PROMPTS if len(prompt) > 2
    )


@each_way
def test_progress_goes_on_over_chunks(way: str) -> None:
    seen: list[tuple[int, int]] = []
    sample_groups(
        architecture("llama"),
        PROMPTS,
        GROUP,
        options(**WAYS[way]),
        step=1,
        on_token=lambda done, total: seen.append((done, total)),
    )
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert counts[-1] == 15
    assert {total for _, total in seen} == {15}


@each_way
def test_a_stop_is_seen_in_every_chunk(way: str) -> None:
    """And no token is decoded after it."""
    tokens: list[int] = []
    last = 12 * len(CHUNKS[way]) - 3
    with pytest.raises(Interrupted):
        sample_groups(
            architecture("llama"),
            PROMPTS,
            GROUP,
            options(endings=Endings(), **WAYS[way]),
            step=1,
            on_token=lambda done, total: tokens.append(done),
            should_stop=lambda: len(tokens) == last,
        )
    assert len(tokens) == last


def test_the_settings_say_how_many() -> None:
    class Tokenizer:
        eos_token_ids = (1,)

    def of(mode: DecodingMode = "together", **settings: Any) -> tuple[DecodingMode, int | None]:
        found = SamplingOptions.of(GRPOConfig(**settings), Tokenizer(), mode=mode)
        return found.mode, found.chunk_size

    assert of() == ("together", None)
    assert of(generation_chunk_size=5) == ("together", 5)
    assert of("equal lengths", generation_chunk_size=5) == ("equal lengths", 5)
    assert of("alone") == ("alone", None)
    for mode in MODES:
        assert of(mode, use_parallel_batch_generation=False) == ("alone", None)


class Seen(Exception):
    """Enough was seen."""


@pytest.mark.parametrize("mode", MODES)
def test_training_and_evaluation_decode_as_the_model_needs(
    mode: DecodingMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SamplingOptions] = []

    def look(model: Any, prompts: Any, *others: Any, **more: Any) -> Any:
        seen.append(next(value for value in others if isinstance(value, SamplingOptions)))
        raise Seen

    monkeypatch.setattr(group_sampling, "sample_groups", look)
    monkeypatch.setattr(evaluation, "decode_greedily", look)
    config = GRPOConfig(generation_chunk_size=3)
    tokenizer = SimpleNamespace(eos_token_ids=(1,))
    nobody: Any = SimpleNamespace(phase=lambda *_: None)
    prompts: Any = [SimpleNamespace(token_ids=[1, 2])]
    sampler = GroupSampler(None, tokenizer, nobody, prompts, nobody, lambda: False, mode=mode)
    with pytest.raises(Seen):
        sampler.sample(PlannedWindow(1, [[0]]), config)
    policy: Any = SimpleNamespace(model=None, source=SimpleNamespace(tokenizer=tokenizer))
    run: Any = SimpleNamespace(
        config=config,
        step=0,
        plan=SimpleNamespace(total_steps=1),
        reporter=nobody,
        stopping=lambda: False,
    )
    with pytest.raises(Seen):
        Evaluator(policy, nobody, prompts, run, mode=mode).evaluate_if_due()
    assert [(found.mode, found.chunk_size) for found in seen] == [(mode, 3)] * 2
