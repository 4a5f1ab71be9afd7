"""Which tokens end a completion, wherever a model's files name them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from grpo_protocol import GRPOConfig
from grpo_trainer.end_tokens import end_token_ids, turn_end_id
from grpo_trainer.model_source import LoadedModel, load_model
from grpo_trainer.rollout import SamplingOptions, sample_groups
from grpo_trainer.scoring import completion_text
from tiny_model import EOS_ID, VOCABULARY, make_model, tiny_model

END_OF_TEXT, END_OF_ANSWER = 256, 262
SIMPLE = "{% for message in messages %}{{ message['content'] + 'END' }}{% endfor %}"


def load(folder: Path) -> LoadedModel:
    return load_model(str(folder), lambda message: None)


def edit(path: Path, **values: Any) -> None:
    """Sets keys of a JSON file; None takes one out."""
    content = {**json.loads(path.read_text()), **values}
    kept = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(kept))


def model_folder(
    folder: Path, *, tokenizer: int, config: Any = None, generation: Any = None
) -> Path:
    """A model without chat template whose files name these end tokens."""
    make_model(folder, eos=generation)
    token = json.loads((folder / "tokenizer.json").read_text())
    names = {index: text for text, index in token["model"]["vocab"].items()}
    names |= {entry["id"]: entry["content"] for entry in token["added_tokens"]}
    edit(folder / "tokenizer_config.json", eos_token=names[tokenizer], chat_template=None)
    edit(folder / "config.json", eos_token_id=config)
    return folder


class Scripted:
    """A model that wants one token at its fourth place and knows nothing of the others."""

    def __init__(self, model: Any, token: int) -> None:
        self.model, self.token, self.calls = model, token, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        self.model(ids, cache=cache)
        self.calls += ids.shape[1] == 1  # the prompt is longer
        wanted = self.token if self.calls == 4 else 40 + self.calls
        logits = 1000.0 * (mx.arange(VOCABULARY) == wanted)
        return mx.broadcast_to(logits, (*ids.shape, VOCABULARY))


BOTH_WAYS = [
    {"tokenizer": 1, "generation": [1, 106]},
    {"tokenizer": 1, "generation": 106},
    {"tokenizer": 106, "generation": 1},
    {"tokenizer": 1, "config": 106, "generation": 1},
    {"tokenizer": 1, "config": [106, 1]},
]


@pytest.mark.parametrize("names", BOTH_WAYS)
def test_M15_a_completion_ends_at_any_of_the_named_tokens(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    loaded = load(model_folder(tmp_path / "model", **names))
    assert set(loaded.tokenizer.eos_token_ids) == {1, 106}
    options = SamplingOptions.of(GRPOConfig(max_completion_length=8), loaded.tokenizer)
    for token in (1, 106):
        found = sample_groups(Scripted(loaded.model, token), [[5, 6, 7]], 4, options, step=1)
        for completion in found:
            assert completion.token_ids == [41, 42, 43, token]
            assert completion.finish_reason == "stop"
            assert len(completion.logprobs) == 4
            text = completion_text(completion, loaded.tokenizer)
            assert text == loaded.tokenizer.decode([41, 42, 43])


def test_M15_all_places_add_to_one_another(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", tokenizer=2, config=3, generation=[4, 5])
    edit(folder / "tokenizer_config.json", chat_template=SIMPLE.replace("END", "<|im_end|>"))
    assert set(load(folder).tokenizer.eos_token_ids) == {2, 3, 4, 5, EOS_ID}


@pytest.mark.parametrize("value", [True, -1, "106", [None, "1", True], {"id": 3}, 4.0])
def test_what_is_no_id_is_passed_over(tmp_path: Path, value: Any) -> None:
    folder = model_folder(tmp_path / "model", tokenizer=2, generation=value)
    assert set(load(folder).tokenizer.eos_token_ids) == {2}


@pytest.mark.parametrize("content", [b"{", b"[1, 2]", b"\xff\xfe", b""])
def test_a_generation_config_that_cannot_be_read_names_none(tmp_path: Path, content: bytes) -> None:
    tokenizer = load(tiny_model()).tokenizer
    (tmp_path / "generation_config.json").write_bytes(content)
    assert end_token_ids(tmp_path, tokenizer) == {EOS_ID}


def templated(template: str | None, added: Sequence[str] = ()) -> Any:
    """The bundled tokenizer with another chat template, and with tokens of its own."""
    tokenizer = load(tiny_model()).tokenizer
    tokenizer.chat_template = template
    tokenizer.add_tokens(list(added))
    return tokenizer


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("<|im_end|>", EOS_ID),
        ("<|im_end|>\\n", EOS_ID),
        ("<|endoftext|><|im_end|>", END_OF_TEXT),
        ("</answer>", END_OF_ANSWER),
        ("\\n<|im_end|>", None),
        (" done", None),
        ("", None),
    ],
)
def test_the_turn_end_is_the_one_token_right_after_the_content(
    end: str, expected: int | None
) -> None:
    assert turn_end_id(templated(SIMPLE.replace("END", end))) == expected


def test_of_two_tokens_that_fit_the_longer_is_the_turn_end_and_white_space_is_none() -> None:
    tokens = ["\n", "<end", "<end_of_turn>"]
    tokenizer = templated(SIMPLE.replace("END", "<end_of_turn>\\n"), tokens)
    assert turn_end_id(tokenizer) == tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert turn_end_id(templated(SIMPLE.replace("END", "\\n"), tokens)) is None


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{{ raise_exception('only one turn') }}",
        "{% for",
        "{{ messages[7]['content'] }}",
        "<|im_end|>{{ messages[0]['content'] }}<|im_end|>",
        "",
    ],
)
def test_a_template_that_fails_or_shows_no_answer_has_no_turn_end(template: str | None) -> None:
    assert turn_end_id(templated(template)) is None


def test_the_bundled_model_ends_at_its_turn_end() -> None:
    assert set(load(tiny_model()).tokenizer.eos_token_ids) == {EOS_ID}
    assert turn_end_id(load(tiny_model()).tokenizer) == EOS_ID
