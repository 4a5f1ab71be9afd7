"""From examples to the ids that the model reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol import ConfigError
from grpo_trainer.dataset import Example, as_examples
from grpo_trainer.model_source import load_model
from grpo_trainer.prompts import encode_prompts
from tiny_model import make_model, tiny_model


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_model(str(tiny_model()), lambda message: None).tokenizer


def tokenizer_with(folder: Path, template: str | None) -> Any:
    """The tokenizer of a tiny model with another chat template."""
    make_model(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("chat_template")
    if template is not None:
        settings["chat_template"] = template
    path.write_text(json.dumps(settings))
    return load_model(str(folder), lambda message: None).tokenizer


def chat(text: str) -> list[Example]:
    return as_examples([{"prompt": [{"role": "user", "content": text}]}])


def text_of(ids: list[int], tokenizer: Any) -> str:
    return str(tokenizer.decode(ids))


def test_messages_go_through_the_template_and_ask_for_an_answer(tokenizer: Any) -> None:
    encoded = encode_prompts(chat("Add 1 and 2."), tokenizer)
    expected = "<|im_start|>user\nAdd 1 and 2.<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(encoded[0].token_ids, tokenizer) == expected
    assert encoded[0].token_ids == tokenizer.encode(expected, add_special_tokens=False)


def test_E09_plain_text_needs_no_template(tmp_path: Path) -> None:
    plain = tokenizer_with(tmp_path, None)
    encoded = encode_prompts(as_examples([{"prompt": "1 + 2 ="}]), plain)
    assert text_of(encoded[0].token_ids, plain) == "1 + 2 ="


def test_E09_messages_without_a_template_are_refused_with_the_ways_out(tmp_path: Path) -> None:
    plain = tokenizer_with(tmp_path, None)
    with pytest.raises(ConfigError) as caught:
        encode_prompts(chat("Hi"), plain)
    message = str(caught.value)
    assert "row 1" in message
    assert "use plain text prompts" in message
    assert "add chat_template.jinja" in message


def test_E11_the_template_alone_writes_the_begin_of_text(tmp_path: Path) -> None:
    template = "<|im_start|>{{ messages[0]['content'] }}"
    begins = tokenizer_with(tmp_path, template)
    ids = encode_prompts(chat("Hi"), begins)[0].token_ids
    assert text_of(ids, begins) == "<|im_start|>Hi"
    assert ids.count(ids[0]) == 1


# Without a setting mlx-lm decides: on, because this tokenizer knows thinking tags.
@pytest.mark.parametrize(("setting", "shown"), [(None, "True"), (True, "True"), (False, "False")])
def test_M29_thinking_is_passed_to_the_template_when_set(
    tmp_path: Path, setting: bool | None, shown: str
) -> None:
    tokenizer = tokenizer_with(tmp_path, "{{ enable_thinking }}")
    encoded = encode_prompts(chat("Hi"), tokenizer, enable_thinking=setting)
    assert text_of(encoded[0].token_ids, tokenizer) == shown


def test_M32_a_prompt_above_the_limit_is_refused_with_its_row_and_lengths(tokenizer: Any) -> None:
    rows = as_examples([{"prompt": "short"}, {"prompt": "a much longer prompt than that"}])
    lengths = [len(prompt.token_ids) for prompt in encode_prompts(rows, tokenizer)]
    assert len(encode_prompts(rows, tokenizer, max_length=max(lengths))) == 2
    with pytest.raises(ConfigError) as caught:
        encode_prompts(rows, tokenizer, max_length=max(lengths) - 1)
    message = str(caught.value)
    assert "row 2" in message
    assert f"{max(lengths)} tokens" in message
    assert f"max_prompt_length={max(lengths) - 1}" in message


def test_a_prompt_without_tokens_is_refused(tmp_path: Path) -> None:
    empty = tokenizer_with(tmp_path, "")
    with pytest.raises(ConfigError, match="row 1: the prompt has no tokens"):
        encode_prompts(chat("Hi"), empty)
