"""When a row ends and why, and what text is left of it."""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from tokenizers import decoders

from grpo_protocol import GRPOConfig
from grpo_trainer.distribution import Distribution
from grpo_trainer.model_source import LoadedModel, load_model
from grpo_trainer.rollout import Completion, SamplingOptions, decode_greedily, sample_groups
from grpo_trainer.row_endings import Ending, Endings
from grpo_trainer.scoring import completion_text
from tiny_model import EOS_ID, VOCABULARY, tiny_model

START_OF_TURN, OPEN_ANSWER = 257, 261
STOP, REPETITION = Ending("stop"), Ending("repetition")


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(str(tiny_model()), lambda message: None)


@pytest.fixture
def tokenizer(loaded: LoadedModel) -> Any:
    return loaded.tokenizer


def first_ending(endings: Endings, ids: Sequence[int]) -> tuple[int, Ending | None]:
    """How many tokens a row that would sample `ids` has, and why."""
    for count in range(1, len(ids) + 1):
        if (ending := endings.after(list(ids[:count]))) is not None:
            return count, ending
    return len(ids), None


def stopping(tokenizer: Any, *stop: str, **others: Any) -> Endings:
    return Endings.of(GRPOConfig(stop=list(stop), **others), tokenizer)


# --- end tokens and repetition


def test_M15_any_end_token_ends_a_row() -> None:
    endings = Endings(frozenset({3, 9}))
    assert first_ending(endings, [1, 2, 9, 3]) == (3, STOP)
    assert first_ending(endings, [3]) == (1, STOP)
    assert first_ending(endings, [1, 2]) == (2, None)


def test_an_end_token_comes_before_a_repetition() -> None:
    endings = Endings(frozenset({9}), max_consecutive_tokens=1, max_ngram_repeats=1)
    assert endings.after([9]) == STOP
    assert endings.after([8]) == REPETITION
    assert endings.after([8, 9]) == STOP


@pytest.mark.parametrize("limit", [2, 5, 16])
def test_so_many_equal_tokens_in_a_row_end_it(limit: int) -> None:
    endings = Endings(max_consecutive_tokens=limit)
    assert first_ending(endings, [7] * 40) == (limit, REPETITION)
    assert first_ending(endings, [1, *[7] * (limit - 1), 1, *[7] * limit, 7]) == (
        2 * limit + 1,
        REPETITION,
    )
    assert first_ending(endings, ([7] * (limit - 1) + [8]) * 5) == (5 * limit, None)


def test_so_many_repeats_of_a_pattern_end_it() -> None:
    endings = Endings(max_ngram_repeats=4, ngram_size=3)
    assert first_ending(endings, [1, *[5, 6] * 9]) == (9, REPETITION)
    assert first_ending(endings, [1, *[5, 6, 7] * 9]) == (13, REPETITION)
    assert first_ending(endings, [5, 5, 6] * 9) == (12, REPETITION)
    assert first_ending(endings, [5, 6, 7, 8] * 9) == (36, None)
    assert first_ending(endings, ([5, 6] * 3 + [1]) * 9) == (63, None)
    assert first_ending(Endings(max_ngram_repeats=4, ngram_size=4), [5, 6, 7, 8] * 9)[0] == 16


def test_equal_tokens_are_no_pattern() -> None:
    """Or `max_consecutive_tokens=0` could not allow any number of them."""
    assert first_ending(Endings(max_ngram_repeats=2, ngram_size=3), [7] * 50) == (50, None)


def test_zero_is_off() -> None:
    for row in ([7] * 99, [7, 8] * 50, [7, 8, 9] * 33):
        assert first_ending(Endings(), row) == (len(row), None)


def repeats(ids: Sequence[int], unit: int, times: int) -> bool:
    tail = list(ids[len(ids) - unit * times :])
    return len(tail) == unit * times and tail == tail[:unit] * times


def test_repetition_is_found_where_a_plain_search_finds_it() -> None:
    generator = random.Random(0)
    endings = Endings(max_consecutive_tokens=4, max_ngram_repeats=3, ngram_size=4)
    seen = set()
    for _ in range(300):
        row = [generator.randrange(2 + generator.randrange(2)) for _ in range(60)]
        plain = next(
            (
                count
                for count in range(1, 61)
                if repeats(row[:count], 1, 4)
                or any(
                    repeats(row[:count], unit, 3) and len(set(row[count - unit : count])) > 1
                    for unit in (2, 3, 4)
                )
            ),
            60,
        )
        assert first_ending(endings, row)[0] == plain
        seen.add(plain)
    assert len(seen) > 20


# --- stop strings


def test_a_stop_string_may_be_spread_over_tokens(tokenizer: Any) -> None:
    text = "the sum is STOP and more"
    ids = tokenizer.encode(text)
    count, ending = first_ending(stopping(tokenizer, "STOP"), ids)
    assert ending == Ending("stop", "STOP")
    assert tokenizer.decode(ids[:count]) == "the sum is STOP"


def test_a_stop_string_may_begin_and_end_inside_of_tokens(tokenizer: Any) -> None:
    ids = tokenizer.encode("7<answer>42</answer>8")
    assert OPEN_ANSWER in ids
    count, ending = first_ending(stopping(tokenizer, "swer>42</an"), ids)
    assert ending == Ending("stop", "swer>42</an")
    assert tokenizer.decode(ids[:count]) == "7<answer>42</answer>"
    found = Completion(ids[:count], "stop", stop_text="swer>42</an")
    assert completion_text(found, tokenizer) == "7<an"


@pytest.mark.parametrize("stop", ["é", "🙂", "🙂🙃", "b🙃", " é", "\n\n", "aaaa"])
@pytest.mark.parametrize("before", ["", "x", "🙂", "🙂🙂🙂🙂🙂🙂", "ééééé a", "aaa", "   "])
def test_a_stop_string_is_found_where_its_last_byte_is(
    tokenizer: Any, stop: str, before: str
) -> None:
    text = before + stop + "c🙃 rest"
    ids = tokenizer.encode(text)
    end = text.index(stop) + len(stop)
    count, ending = first_ending(stopping(tokenizer, stop), ids)
    assert ending == Ending("stop", stop)
    assert count == len(text[:end].encode())
    cut = Completion(ids[:count], "stop", stop_text=stop)
    assert completion_text(cut, tokenizer) == text[: text.index(stop)]


PIECES = ["▁Hello", "▁END", "▁", "EN", "D", "ST", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁a", ""]


def sentencepiece_like(ids: list[int]) -> str:
    """As llama's first tokenizers decode: a leading space is lost, and so are all byte pieces in a
    row when one of them is no character."""
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    return str(decoders.Sequence(steps).decode([PIECES[token] for token in ids]))


SMILE = [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("stop", "row", "count"),
    [
        (" END", [0, 10, 10, 10, 10, 1, 0], 6),
        (" END", [10] * 9 + [2, 3, 4, 0], 12),
        (" END", [1, 10, 10, 10, 1, 0], 5),  # the first lost its space
        ("END", [1, 0, 0], 1),
        ("END", [0, 3, *[11] * 20, 4, 0], 23),
        ("🙂", [0, *SMILE, 0], 5),
        ("🙂END", [0, *SMILE * 5, *SMILE, 3, 4, 0], 27),
        ("🙂🙂", [0, *SMILE[2:], 0, *SMILE, *SMILE, 0], 12),
    ],
)
def test_decoders_that_look_at_their_neighbours_hide_no_stop_string(
    stop: str, row: list[int], count: int
) -> None:
    endings = Endings(stop=(stop,), decode=sentencepiece_like)
    assert first_ending(endings, row) == (count, Ending("stop", stop))


def test_the_stop_string_that_begins_first_is_named(tokenizer: Any) -> None:
    ids = tokenizer.encode("7</answer>")
    assert first_ending(stopping(tokenizer, "wer", "/ans"), ids)[1] == Ending("stop", "/ans")
    assert first_ending(stopping(tokenizer, "x", "wer"), ids)[1] == Ending("stop", "wer")


def test_a_special_token_may_be_a_stop_string(tokenizer: Any) -> None:
    ids = [*tokenizer.encode("12"), START_OF_TURN, *tokenizer.encode("user")]
    count, ending = first_ending(stopping(tokenizer, "<|im_start|>"), ids)
    assert (count, ending) == (3, Ending("stop", "<|im_start|>"))
    found = Completion(ids[:3], "stop", stop_text="<|im_start|>")
    assert completion_text(found, tokenizer) == "12"
    before = [START_OF_TURN, *tokenizer.encode("12 END")]
    found = Completion(before, "stop", stop_text=" END")
    assert completion_text(found, tokenizer) == "12"


def test_without_stop_strings_nothing_is_decoded_and_with_them_only_the_end() -> None:
    decoded: list[int] = []

    def decode(ids: list[int]) -> str:
        decoded.append(len(ids))
        return "a" * len(ids)

    first_ending(Endings(decode=decode), range(2000))
    assert decoded == []
    first_ending(Endings(stop=("bcde",), decode=decode), range(2000))
    assert len(decoded) == 2000
    assert max(decoded) < 10


# --- in a rollout, and the text that is left


def test_rows_of_a_rollout_end_for_each_reason(loaded: LoadedModel) -> None:
    endings = stopping(
        loaded.tokenizer, "a", "b", "1", "2", max_ngram_repeats=2, max_consecutive_tokens=2
    )
    options = SamplingOptions(40, Distribution(temperature=0.8), endings)
    found = sample_groups(loaded.model, [[1], [2, 3], [70, 5, 9]], 32, options, step=1)
    kinds = set()
    for completion in found:
        count, ending = first_ending(endings, completion.token_ids)
        expected = ending or Ending("length")
        assert count == len(completion.token_ids) == len(completion.logprobs)
        assert Ending(completion.finish_reason, completion.stop_text) == expected
        text = completion_text(completion, loaded.tokenizer)
        assert completion.stop_text is None or completion.stop_text not in text
        assert "<|im_end|>" not in text
        kinds.add((completion.finish_reason, completion.token_ids[-1] == EOS_ID))
    assert kinds == {
        ("stop", True),
        ("stop", False),
        ("repetition", False),
        ("length", False),
    }


class Scripted:
    """A model that writes what it is told, whatever it reads."""

    def __init__(self, model: Any, prompt: Sequence[int], script: Sequence[int]) -> None:
        self.model, self.script, self.skip = model, script, len(prompt) - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        self.model(ids, cache=cache)
        places = cache[0].offset - ids.shape[1] + mx.arange(ids.shape[1]) - self.skip
        script = mx.array(list(self.script))
        best = mx.take(script, mx.maximum(places, 0))
        return mx.broadcast_to(
            100.0 * (mx.arange(VOCABULARY) == best[:, None]), (*ids.shape, VOCABULARY)
        )


def say(loaded: LoadedModel, ids: list[int], **settings: Any) -> Completion:
    prompt = [1, 2, 3]
    options = SamplingOptions.of(GRPOConfig(**settings), loaded.tokenizer)
    script = [*ids, *[EOS_ID] * 3]
    return decode_greedily(Scripted(loaded.model, prompt, script), [prompt], options)[0]


def test_M16_halves_of_characters_are_marked_in_the_text_and_kept_in_the_ids(
    loaded: LoadedModel,
) -> None:
    encode = loaded.tokenizer.encode
    for ids in (encode("ab")[:1] + encode("🙂")[:2] + encode(" c"), encode("é")[1:], encode("é")):
        found = say(loaded, ids)
        assert found.token_ids == [*ids, EOS_ID]
        text = completion_text(found, loaded.tokenizer)
        assert found.token_ids == [*ids, EOS_ID]
        assert ("\ufffd" in text) == (encode(text) != ids)


def test_a_row_cut_for_repeating_itself_keeps_its_text(loaded: LoadedModel) -> None:
    found = say(loaded, loaded.tokenizer.encode("well, " + "no" * 20))
    assert found.finish_reason == "repetition"
    assert completion_text(found, loaded.tokenizer) == "well, " + "no" * 8
    limited = say(loaded, loaded.tokenizer.encode("abc"), max_completion_length=2)
    assert limited.finish_reason == "length"
    assert completion_text(limited, loaded.tokenizer) == "ab"
    stopped = say(loaded, loaded.tokenizer.encode("a<answer>1</answer> x"), stop=["</answer>"])
    assert completion_text(stopped, loaded.tokenizer) == "a<answer>1"
    assert stopped.stop_text == "</answer>"
