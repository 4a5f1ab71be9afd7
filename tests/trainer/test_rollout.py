"""Sampling: what a row is may depend on its prompt, seed, step and place, and on nothing else."""

import math
from typing import Any

import mlx.core as mx
import pytest

from grpo_trainer import rollout
from grpo_trainer.learner import TrainingRow, _to_tensors, score_tokens
from grpo_trainer.model_source import load_model
from grpo_trainer.rollout import (
    Completion,
    Interrupted,
    SamplingOptions,
    decode_greedily,
    sample_groups,
)
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


def options(**changes: Any) -> SamplingOptions:
    values = {"max_tokens": 12, "temperature": 1.0, "eos_ids": frozenset[int](), **changes}
    return SamplingOptions(**values)


def ids(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def test_M17_a_ragged_batch_decodes_as_each_prompt_alone(model: Any) -> None:
    together = ids(decode_greedily(model, PROMPTS, options(max_tokens=16)))
    alone = [ids(decode_greedily(model, [p], options(max_tokens=16)))[0] for p in PROMPTS]
    assert together == alone
    assert {len(row) for row in together} == {16}


def test_rows_that_end_early_do_not_disturb_the_others(model: Any) -> None:
    free = ids(decode_greedily(model, PROMPTS, options(max_tokens=16)))
    eos = frozenset({free[0][2], free[2][5]})
    found = decode_greedily(model, PROMPTS, options(max_tokens=16, eos_ids=eos))
    for completion, row in zip(found, free, strict=True):
        ends = [place for place, token in enumerate(row) if token in eos]
        assert completion.token_ids == row[: ends[0] + 1 if ends else None]
        assert completion.finish_reason == ("stop" if ends else "length")
    assert len({len(c.token_ids) for c in found}) > 1


def test_M15_every_stop_id_ends_a_row_and_belongs_to_it(model: Any) -> None:
    free = ids(decode_greedily(model, [PROMPTS[1]], options()))[0]
    place = next(i for i in range(2, 12) if free[i] not in free[:i])
    for eos in ({free[place]}, {free[place], 1}, {255, free[place]}):
        found = decode_greedily(model, [PROMPTS[1]], options(eos_ids=frozenset(eos)))[0]
        assert found == Completion(free[: place + 1], "stop")


def test_the_last_token_may_be_the_end(model: Any) -> None:
    free = ids(decode_greedily(model, [PROMPTS[1]], options()))[0]
    place = next(i for i in range(2, 12) if free[i] not in free[:i])
    eos = frozenset({free[place]})
    cut = options(max_tokens=place + 1, eos_ids=eos)
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


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_M09_tokens_follow_the_distribution_at_the_temperature(
    model: Any, temperature: float
) -> None:
    """The mean log-probability of many draws is minus the entropy of what they are drawn from."""
    draws = 1000
    found = sample_groups(
        model, [PROMPTS[3]], draws, options(max_tokens=1, temperature=temperature), step=1
    )
    logits = model(mx.array([PROMPTS[3]]))[0, -1].astype(mx.float32) / temperature
    logprobs = logits - mx.logsumexp(logits)
    probabilities = mx.exp(logprobs)
    entropy = -(probabilities * logprobs).sum()
    spread = mx.sqrt((probabilities * (logprobs + entropy).square()).sum())
    drawn = logprobs[mx.array([completion.token_ids[0] for completion in found])]
    assert abs(number(drawn.mean() + entropy)) < 4 * number(spread) / math.sqrt(draws)


class Listener:
    """Passes calls on to a model and keeps its last logits of each call."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.logits: list[mx.array] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self.model(ids, cache=cache)
        self.logits.append(logits[:, -1])
        return logits


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_M09_training_scores_tokens_as_the_rollout_did(model: Any, temperature: float) -> None:
    listener = Listener(model)
    found = sample_groups(listener, PROMPTS, 2, options(temperature=temperature), step=1)
    prefills, decoded = listener.logits[: len(PROMPTS)], listener.logits[len(PROMPTS) :]
    steps_B_V = [mx.concatenate([row for row in prefills for _ in range(2)]), *decoded]
    logits_B_T_V = mx.stack(steps_B_V, axis=1) / temperature
    chosen = mx.array(ids(found))[..., None]
    sampled = mx.take_along_axis(logits_B_T_V, chosen, axis=-1)[..., 0] - mx.logsumexp(
        logits_B_T_V, axis=-1
    )
    rows = [TrainingRow(PROMPTS[n // 2], c.token_ids, 1.0) for n, c in enumerate(found)]
    batch = _to_tensors(rows)
    trained, _ = score_tokens(model, batch, temperature)
    for index, row in enumerate(rows):
        start = len(row.prompt_ids) - 1
        of_row = trained[index, start : start + len(row.completion_ids)]
        assert number(mx.abs(of_row - sampled[index]).max()) < 1e-4
        assert batch.mask_B_T[index].sum().item() == len(row.completion_ids)


def test_a_long_prompt_is_read_in_pieces(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ids(decode_greedily(model, PROMPTS, options()))
    monkeypatch.setattr(rollout, "PREFILL_CHUNK", 4)
    assert ids(decode_greedily(model, PROMPTS, options())) == whole


def test_progress_counts_rows_that_have_ended(model: Any) -> None:
    seen: list[tuple[int, int]] = []
    free = ids(sample_groups(model, PROMPTS, 2, options(), step=1))
    eos = frozenset({free[0][1], free[5][6]})
    sample_groups(
        model,
        PROMPTS,
        2,
        options(eos_ids=eos),
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
