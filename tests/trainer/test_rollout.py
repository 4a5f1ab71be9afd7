"""Sampling: what a row is may depend on its prompt, seed, step and place, and on nothing else."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx
import pytest

from grpo_protocol.messages import FinishReason
from grpo_trainer import prompt_reading
from grpo_trainer.distribution import Distribution, history_windows
from grpo_trainer.model_source import load_model
from grpo_trainer.rollout import (
    Completion,
    Interrupted,
    SamplingOptions,
    decode_greedily,
    sample_groups,
)
from grpo_trainer.row_endings import Endings
from grpo_trainer.trees import number
from tiny_model import VOCABULARY, Kind, tiny_model

# Unlike lengths: 1, 3, 11 and 30 tokens.
PROMPTS = [
    [(7 * row + 3 * place) % 256 for place in range(n)] for row, n in enumerate((1, 3, 11, 30))
]


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest) -> Any:
    kind: Kind = request.param
    return load_model(str(tiny_model(kind)), lambda message: None).model


PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "repetition_context_size": 16,
    "presence_penalty": 0.4,
    "presence_context_size": 4,
    "frequency_penalty": 0.3,
    "frequency_context_size": 8,
}
DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.5},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "repetition": {"repetition_penalty": 1.3, "repetition_context_size": 16},
    "presence": {"presence_penalty": 0.4, "presence_context_size": 4},
    "frequency": {"frequency_penalty": 0.3, "frequency_context_size": 8},
    "all": {"temperature": 1.3, "top_k": 60, "top_p": 0.9, "min_p": 0.01, **PENALTIES},
}
each_distribution = pytest.mark.parametrize("name", DISTRIBUTIONS)


def options(
    *, max_tokens: int = 12, seed: int = 0, endings: Any = None, **distribution: Any
) -> SamplingOptions:
    return SamplingOptions(max_tokens, Distribution(**distribution), endings or Endings(), seed)


def ends(*eos_ids: int, **others: Any) -> Endings:
    return Endings(frozenset(eos_ids), **others)


def ids(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


class Uniform:
    """A model that knows nothing: every token is as likely as any other."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        return mx.zeros_like(self.model(ids, cache=cache))


def test_M17_a_ragged_batch_decodes_as_each_prompt_alone(model: Any) -> None:
    together = ids(decode_greedily(model, PROMPTS, options(max_tokens=16)))
    alone = [ids(decode_greedily(model, [p], options(max_tokens=16)))[0] for p in PROMPTS]
    assert together == alone
    assert {len(row) for row in together} == {16}


def test_rows_that_end_early_do_not_disturb_the_others(model: Any) -> None:
    free = ids(decode_greedily(model, PROMPTS, options(max_tokens=16)))
    eos = frozenset({free[0][2], free[2][5]})
    found = decode_greedily(model, PROMPTS, options(max_tokens=16, endings=Endings(eos)))
    for completion, row in zip(found, free, strict=True):
        places = [place for place, token in enumerate(row) if token in eos]
        assert completion.token_ids == row[: places[0] + 1 if places else None]
        assert completion.finish_reason == ("stop" if places else "length")
    assert len({len(c.token_ids) for c in found}) > 1


def test_M15_every_stop_id_ends_a_row_and_belongs_to_it(model: Any) -> None:
    free = ids(decode_greedily(model, [PROMPTS[1]], options()))[0]
    place = next(i for i in range(2, 12) if free[i] not in free[:i])
    for eos in ({free[place]}, {free[place], 1}, {255, free[place]}):
        found = decode_greedily(model, [PROMPTS[1]], options(endings=ends(*eos)))[0]
        assert found == Completion(free[: place + 1], "stop")


def test_the_last_token_may_be_the_end(model: Any) -> None:
    free = ids(decode_greedily(model, [PROMPTS[1]], options()))[0]
    place = next(i for i in range(2, 12) if free[i] not in free[:i])
    cut = options(max_tokens=place + 1, endings=ends(free[place]))
    assert decode_greedily(model, [PROMPTS[1]], cut)[0].finish_reason == "stop"


def test_M33_one_token_is_a_completion(model: Any) -> None:
    found = sample_groups(model, PROMPTS, 2, options(max_tokens=1), step=1)
    assert [len(completion.token_ids) for completion in found] == [1] * 8
    assert {completion.finish_reason for completion in found} == {"length"}


def test_a_row_depends_on_seed_step_and_place_alone(model: Any) -> None:
    together = ids(sample_groups(model, PROMPTS, 3, options(), step=5))
    for place, prompt in enumerate(PROMPTS):
        alone = sample_groups(model, [prompt], 3, options(), step=5, first_row=3 * place)
        assert ids(alone) == together[3 * place : 3 * place + 3]
    assert ids(sample_groups(model, PROMPTS, 3, options(), step=5)) == together


def test_the_global_generator_plays_no_part(model: Any) -> None:
    mx.random.seed(1)
    first = ids(sample_groups(model, PROMPTS, 2, options(), step=1))
    mx.random.seed(2)
    assert ids(sample_groups(model, PROMPTS, 2, options(), step=1)) == first


def test_M19_completions_differ_within_a_group_between_steps_and_seeds(model: Any) -> None:
    seen = set()
    for seed, step in ((0, 1), (0, 2), (0, 3), (1, 1)):
        group = ids(sample_groups(model, [PROMPTS[2]], 8, options(seed=seed), step=step))
        assert len(set(map(tuple, group))) == 8
        seen |= set(map(tuple, group))
    assert len(seen) == 32


Group = list[list[int]]


def in_this_thread(tasks: list[Callable[[], Group]]) -> list[Group]:
    return [task() for task in tasks]


def in_an_executor(tasks: list[Callable[[], Group]]) -> list[Group]:
    with ThreadPoolExecutor(1) as executor:
        return list(executor.map(lambda task: task(), tasks))


def in_fresh_threads(tasks: list[Callable[[], Group]]) -> list[Group]:
    found: list[Group] = []
    for task in tasks:
        thread = threading.Thread(target=lambda task=task: found.append(task()))
        thread.start()
        thread.join()
    return found


@pytest.mark.parametrize("run", [in_this_thread, in_an_executor, in_fresh_threads])
def test_M19_no_thread_starts_the_stream_anew(model: Any, run: Any) -> None:
    """Six steps at uniform logits, where nothing but the keys can make a difference."""

    def task(step: int) -> Callable[[], Group]:
        return lambda: ids(sample_groups(Uniform(model), [PROMPTS[2]], 8, options(), step=step))

    groups = run([task(step) for step in range(1, 7)])
    assert len({tuple(row) for group in groups for row in group}) == 6 * 8
    assert groups == [task(step)() for step in range(1, 7)]


def full_logprobs(
    model: Any, prompt: list[int], completion: list[int], distribution: Distribution
) -> mx.array:
    """[T, V]: log-probabilities before each completion token, from one pass over all of them."""
    inputs = mx.array([prompt + completion[:-1]])
    windows = history_windows(inputs, distribution.history_size)
    logits = distribution.logits(model(inputs), windows)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return logprobs[0, len(prompt) - 1 :]


@each_distribution
def test_M09_tokens_follow_the_distribution(model: Any, name: str) -> None:
    """The mean log-probability of many draws is minus the entropy of what they are drawn from."""
    draws, choice = 1000, options(max_tokens=1, **DISTRIBUTIONS[name])
    found = sample_groups(model, [PROMPTS[3]], draws, choice, step=1)
    logprobs = full_logprobs(model, PROMPTS[3], [0], choice.distribution)[0]
    probabilities = mx.exp(logprobs)
    entropy = -(probabilities * logprobs).sum()
    spread = mx.sqrt((probabilities * (logprobs + entropy).square()).sum())
    drawn = logprobs[mx.array([completion.token_ids[0] for completion in found])]
    assert abs(number(drawn.mean() + entropy)) < 4 * number(spread) / math.sqrt(draws)


@each_distribution
def test_M09_logprobs_are_those_of_a_full_forward_pass(model: Any, name: str) -> None:
    choice = options(max_tokens=24, endings=ends(3, 50, 90, 140), **DISTRIBUTIONS[name])
    found = sample_groups(model, PROMPTS, 4, choice, step=1)
    assert len({len(completion.token_ids) for completion in found}) > 1
    for row, completion in enumerate(found):
        chosen = mx.array(completion.token_ids)[:, None]
        full = full_logprobs(model, PROMPTS[row // 4], completion.token_ids, choice.distribution)
        expected = mx.take_along_axis(full, chosen, axis=-1)[:, 0]
        assert len(completion.logprobs) == len(completion.token_ids)
        assert number(mx.abs(mx.array(completion.logprobs) - expected).max()) < 1e-4


def test_penalties_follow_a_row_when_others_leave(model: Any) -> None:
    choice = options(max_tokens=24, endings=ends(3, 50, 90, 140, 200, 7, 8, 9), **PENALTIES)
    together = sample_groups(model, PROMPTS, 3, choice, step=2)
    assert len({len(completion.token_ids) for completion in together}) > 3
    for place, prompt in enumerate(PROMPTS):
        alone = sample_groups(model, [prompt], 3, choice, step=2, first_row=3 * place)
        assert ids(alone) == ids(together[3 * place : 3 * place + 3])


def test_greedy_takes_the_best_token_after_penalties_alone(model: Any) -> None:
    free = decode_greedily(model, PROMPTS, options())
    shaped = options(temperature=3.0, top_k=5, top_p=0.5, min_p=0.5)
    assert decode_greedily(model, PROMPTS, shaped) == free
    assert {len(completion.logprobs) for completion in free} == {0}
    penalized = options(**PENALTIES)
    found = decode_greedily(model, PROMPTS, penalized)
    assert ids(found) != ids(free)
    for prompt, completion in zip(PROMPTS, found, strict=True):
        scores = full_logprobs(model, prompt, completion.token_ids, penalized.distribution)
        assert mx.argmax(scores, axis=-1).tolist() == completion.token_ids


def test_a_long_prompt_is_read_in_pieces(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ids(decode_greedily(model, PROMPTS, options()))
    monkeypatch.setattr(prompt_reading, "TOKENS_AT_ONCE", 4)
    assert ids(decode_greedily(model, PROMPTS, options())) == whole


def test_progress_counts_rows_that_have_ended(model: Any) -> None:
    seen: list[tuple[int, int]] = []
    free = ids(sample_groups(model, PROMPTS, 2, options(), step=1))
    sample_groups(
        model,
        PROMPTS,
        2,
        options(endings=ends(free[0][1], free[5][6])),
        step=1,
        on_token=lambda done, total: seen.append((done, total)),
    )
    counts = [done for done, _ in seen]
    assert counts == sorted(counts)
    assert counts[-1] > 0
    assert {total for _, total in seen} == {8}


def test_stop_is_looked_at_after_every_token(model: Any) -> None:
    tokens = 0

    def count(done: int, total: int) -> None:
        nonlocal tokens
        tokens += 1

    with pytest.raises(Interrupted):
        sample_groups(
            model,
            PROMPTS,
            2,
            options(max_tokens=200),
            step=1,
            on_token=count,
            should_stop=lambda: tokens == 3,
        )
    assert tokens == 3
    with pytest.raises(Interrupted):
        decode_greedily(model, PROMPTS, options(), should_stop=lambda: True)


def test_ids_stay_within_the_vocabulary(model: Any) -> None:
    found = ids(sample_groups(model, PROMPTS, 4, options(temperature=5.0), step=1))
    assert all(0 <= token < VOCABULARY for row in found for token in row)


@pytest.mark.parametrize(
    ("reason", "truncated"), [("stop", False), ("length", True), ("repetition", True)]
)
def test_M22_truncated_is_what_did_not_stop(reason: FinishReason, truncated: bool) -> None:
    assert Completion([1], reason).is_truncated is truncated
