"""Every architecture samples what training scores, in the mode that the probe found safe for it."""

import functools
from typing import Any

import mlx.core as mx
import pytest

from architectures import ARCHITECTURES, VOCABULARY, WINDOW, architecture, make_architecture
from grpo_trainer import prompt_reading
from grpo_trainer.batch_probe import Decoding, how_to_decode
from grpo_trainer.distribution import Distribution
from grpo_trainer.errors import ModelError
from grpo_trainer.rollout import Completion, SamplingOptions, decode_greedily, sample_groups
from grpo_trainer.row_endings import Endings
from grpo_trainer.token_scores import score_tokens
from grpo_trainer.training_rows import TrainingRow, completion_values, to_tensors
from grpo_trainer.trees import number

BY_LENGTH = {
    *("afm7", "deepseek_v41", "gemma2", "gpt_bigcode", "llama4", "longcat_flash_ngram"),
}
"""Their caches hold no rows of unlike lengths, or their layers ask for one position of all."""
REFUSED = {"plamo3"}
"""They compute something else with a cache than without, and so does one pass with a cache."""
WRONG_WITHOUT_CACHE = {"gemma3n"}
"""One pass with a cache is what decoding sees; one without is not."""
CLOSELY = (
    # the ones that users bring
    *("qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", "llama", "gemma3_text"),
    # windows, chunks and attention sinks
    *("cohere2", "exaone4", "gpt_oss", "llama4", "ministral3", "olmo3"),
    # recurrent and hybrid
    *("falcon_h1", "granitemoehybrid", "jamba", "lfm2", "mamba2", "nemotron_h", "plamo2"),
    *("recurrent_gemma", "rwkv7"),
    # others whose rows cannot be decoded together
    *("afm7", "deepseek_v41", "gemma2", "gpt_bigcode", "longcat_flash_ngram"),
    # layers that share keys and values through the cache
    "gemma3n",
)
closely = pytest.mark.parametrize("name", CLOSELY)
PROMPTS = [
    [(7 * row + 3 * place + 1) % VOCABULARY for place in range(n)]
    for row, n in enumerate((1, 3, 11, 30, 11, 3))
]
ENDS = Endings(eos_ids=frozenset(range(0, VOCABULARY, 9)))
"""A ninth of all tokens: rows end after anything from one token to all of them."""


@functools.cache
def probed(name: str) -> tuple[Any, Decoding]:
    """A model as the probe leaves it, and what it found."""
    # The probe is to change one kind of model alone.
    model = (make_architecture if name in WRONG_WITHOUT_CACHE else architecture)(name)
    return model, how_to_decode(model)


def model_of(name: str) -> Any:
    return probed(name)[0]


def options(name: str, **others: Any) -> SamplingOptions:
    return SamplingOptions(16, mode=probed(name)[1].mode, **others)


def ids(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def training_logprobs(
    model: Any, prompts: list[list[int]], found: list[Completion]
) -> list[list[float]]:
    """Of the completions, from one pass over all rows padded on the right."""
    size = len(found) // len(prompts)
    rows = [
        TrainingRow(prompts[place // size], completion.token_ids, 0.0)
        for place, completion in enumerate(found)
    ]
    logprobs, _ = score_tokens(model, to_tensors(rows), Distribution())
    return completion_values(logprobs, rows)


def assert_drawn_as_scored(name: str, prompts: list[list[int]], found: list[Completion]) -> None:
    expected = training_logprobs(model_of(name), prompts, found)
    for completion, logprobs in zip(found, expected, strict=True):
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)


@closely
def test_M17_a_ragged_batch_decodes_as_each_prompt_alone(name: str) -> None:
    """Greedily; prompts and sequences are shorter and longer than the window."""
    model = model_of(name)
    together = ids(decode_greedily(model, PROMPTS, options(name)))
    single = SamplingOptions(16, mode="alone")
    assert together == [ids(decode_greedily(model, [prompt], single))[0] for prompt in PROMPTS]
    assert {len(row) for row in together} == {16}
    for prompt, row in zip(PROMPTS, together, strict=True):
        logits = model(mx.array([prompt + row[:-1]]))[0, len(prompt) - 1 :]
        assert mx.argmax(logits, axis=-1).tolist() == row


@closely
def test_M09_logprobs_as_drawn_are_those_of_the_training_forward(name: str) -> None:
    """While rows end at different times; short and long prompts follow each other."""
    model, prompts = model_of(name), [PROMPTS[place] for place in (2, 0, 3, 1, 4)]
    found = sample_groups(model, prompts, 2, options(name, endings=ENDS), step=1)
    assert len({len(completion.token_ids) for completion in found}) > 3
    assert_drawn_as_scored(name, prompts, found)


@pytest.mark.parametrize(
    "name",
    ["qwen3", "gemma3_text", "qwen3_5", "gpt_oss", "mamba2", "gemma2", "llama4", "gemma3n"],
)
def test_a_prompt_read_in_pieces_is_read_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces shorter and longer than the window, of rows that are read together."""
    model, prompts = model_of(name), [*PROMPTS, PROMPTS[3][::-1]]
    whole = sample_groups(model, prompts, 2, options(name), step=1)
    for size in (2, 2 * WINDOW - 1, 2 * WINDOW + 5):
        monkeypatch.setattr(prompt_reading, "TOKENS_AT_ONCE", size)
        pieces = sample_groups(model, prompts, 2, options(name), step=1)
        assert ids(pieces) == ids(whole)
        assert_drawn_as_scored(name, prompts, pieces)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name not in REFUSED])
def test_each_architecture_decodes_and_trains_as_the_probe_says(name: str) -> None:
    """Its mode is the one expected, and what that mode draws is what training scores."""
    model, found = probed(name)
    assert found.mode == ("equal lengths" if name in BY_LENGTH else "together"), found
    assert found.padded
    assert len(found.warnings) == (name in BY_LENGTH)
    if name in CLOSELY:
        return  # the tests above
    prompts = [PROMPTS[1], PROMPTS[2]]
    short = SamplingOptions(5, endings=ENDS, mode=found.mode)
    assert_drawn_as_scored(name, prompts, sample_groups(model, prompts, 2, short, step=1))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_model_whose_rollouts_and_training_disagree_is_refused(name: str) -> None:
    model, single = architecture(name), SamplingOptions(16, mode="alone")
    found = sample_groups(model, PROMPTS, 1, single, step=1)
    expected = training_logprobs(model, PROMPTS, found)
    gaps = [
        abs(drawn - scored)
        for completion, scores in zip(found, expected, strict=True)
        for drawn, scored in zip(completion.logprobs, scores, strict=True)
    ]
    assert max(gaps) > 0.1
    with pytest.raises(ModelError, match=f"model_type='{name}'.*training would disagree"):
        how_to_decode(model)


@closely
def test_these_models_are_loud_enough_to_be_tested_with(name: str) -> None:
    """The first of a few tokens shows in the logits of the last."""
    ids_B_T = mx.array([[5, 9, 30, 2, 77, 41], [99, 9, 30, 2, 77, 41]])
    first, second = model_of(name)(ids_B_T)[:, -1]
    assert number(mx.abs(first - second).max()) > 0.03 * number(mx.abs(first).max())
