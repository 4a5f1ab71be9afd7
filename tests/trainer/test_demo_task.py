"""The bundled task: disjoint parts, honest rewards, and a model folder that fits them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from grpo_trainer.demo import settings, task, tokenizer

MODEL_FOLDER = Path(task.__file__).parent / "model"
RIGHT = "<think>7+8=15 4+3+1=8</think><answer>85</answer>"
LARGE = 100_000


def questions(rows: list[task.Row]) -> set[str]:
    return {row["prompt"][0]["content"] for row in rows}


def total_reward(completion: str, answer: str) -> float:
    parts = (
        weight * function([completion], answer=[answer])[0] for function, weight in settings.REWARDS
    )
    return sum(parts)


@pytest.fixture(scope="module")
def encoder() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def chat() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL_FOLDER)


def test_parts_are_disjoint_and_cover_every_problem() -> None:
    parts = {split: set(task.problems_of(split)) for split in task.Split}
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 90 * 90
    assert all(len(problems) > 1000 for problems in parts.values())


def test_a_mirrored_problem_lies_in_the_same_part() -> None:
    for split in task.Split:
        problems = set(task.problems_of(split))
        assert {task.Problem(b, a) for a, b in problems} == problems


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_prompts_never_occur_elsewhere(seed: int) -> None:
    held_out = questions(task.evaluation_rows())
    training = questions(task.training_rows(settings.TRAINING_ROWS, seed))
    warm_start = {task.question(p) for p in task.problems_of(task.Split.WARM_START)}
    assert len(held_out) == task.EVALUATION_ROWS == 200
    assert not held_out & training
    assert not held_out & warm_start
    assert not training & warm_start
    assert len(training) == settings.TRAINING_ROWS, "a prompt came twice"


def test_rows_derive_from_the_seed_alone() -> None:
    assert task.training_rows(50, 3) == task.training_rows(50, 3)
    assert task.training_rows(50, 3) != task.training_rows(50, 4)
    assert task.evaluation_rows() == task.evaluation_rows()
    assert task.evaluation_rows()[:2] == [
        {"prompt": [{"role": "user", "content": "99+99=?"}], "answer": "198"},
        {"prompt": [{"role": "user", "content": "38+36=?"}], "answer": "74"},
    ]


def test_more_rows_than_problems_are_dealt_again() -> None:
    rows = task.training_rows(9000)
    assert len(rows) == 9000
    assert len(questions(rows)) == len(task.problems_of(task.Split.TRAINING))


def test_three_prompts_in_four_carry_and_all_answers_are_right() -> None:
    rows = task.training_rows(400)
    pairs = [tuple(map(int, row["prompt"][0]["content"][:-2].split("+"))) for row in rows]
    assert [str(a + b) for a, b in pairs] == [row["answer"] for row in rows]
    assert sum(a % 10 + b % 10 >= 10 for a, b in pairs) == 300


def test_every_perfect_completion_earns_exactly_one() -> None:
    assert task.solution(task.Problem(47, 38)) == RIGHT
    assert task.solution(task.Problem(12, 34)) == "<think>2+4=6 1+3=4</think><answer>46</answer>"
    for problem in task.problems_of(task.Split.EVALUATION):
        assert total_reward(task.solution(problem), str(problem.total)) == 1.0


def test_weights_bound_the_reward_and_match_the_settings() -> None:
    weights = [weight for _, weight in settings.REWARDS]
    assert sum(weights) == 1.0
    assert settings.SETTINGS["reward_weights"] == weights
    assert settings.SETTINGS["max_steps"] * settings.SETTINGS["batch_size"] == (
        settings.TRAINING_ROWS
    )


@pytest.mark.parametrize(
    ("completion", "correct", "formed"),
    [
        (RIGHT, 1, 1),
        (RIGHT + "\n", 1, 1),
        ("<think>7+8=15</think><answer> 85 </answer>", 1, 1),
        ("<think>7+8=15 4+3=7</think><answer>75</answer>", 0, 1),
        ("<think>work</think><answer>085</answer>", 0, 1),
        ("<think>work</think><answer>85.0</answer>", 0, 1),
        ("<think>work</think><answer>４５</answer>", 0, 1),
        ("<answer>85</answer>", 1, 0),
        ("<think></think><answer>85</answer>", 1, 0),
        (RIGHT + "85", 1, 0),
        ("so " + RIGHT, 1, 0),
        ("<answer>85</answer><think>7+8=15</think>", 1, 0),
        ("<think>7+8=15</think> so <answer>85</answer>", 1, 0),
        ("<think>7+8=15</think>85", 0, 0),
        ("<think>7+8=15</think><answer>", 0, 0),
        ("<think>7+8=15</think><answer>85", 0, 0),
        ("</answer>85<answer>", 0, 0),
        ("<think>7</think><answer></answer>", 0, 0),
        ("<answer>75</answer><answer>85</answer>", 0, 0),
        ("<answer>85</answer><answer>75</answer>", 0, 0),
        ("<answer>85</answer><answer>", 0, 0),
        ("<answer>85</answer></answer>", 0, 0),
        ("<think><answer>75</answer></think><answer>85</answer>", 0, 0),
        ("<think>" + RIGHT, 1, 0),
        ("85", 0, 0),
        ("", 0, 0),
        ("\x00\ud800\x1b[31m", 0, 0),
    ],
)
def test_rewards(completion: str, correct: float, formed: float) -> None:
    assert task.correctness([completion], answer=["85"]) == [correct]
    assert task.form([completion], answer=["85"]) == [formed]


def test_rewards_take_whole_batches_and_unused_columns() -> None:
    completions = [RIGHT, RIGHT, "85"]
    answers = ["85", "86", "85"]
    assert task.correctness(completions, answer=answers, prompts=["?"] * 3) == [1, 0, 0]
    assert task.form(completions, answer=answers, prompts=["?"] * 3) == [1, 1, 0]
    with pytest.raises(ValueError, match="shorter"):
        task.correctness(completions, answer=answers[:2])


@pytest.mark.parametrize(
    "unit", ["<answer>", "<think>", "</answer><answer>", "9", " ", RIGHT, "<think></think>"]
)
def test_rewards_are_quick_on_large_completions(unit: str) -> None:
    completion = unit * (LARGE // len(unit))
    start = time.perf_counter()
    assert total_reward(completion, "85") == 0.0
    wrapped = f"<think>{'1+1=2 ' * (LARGE // 6)}</think><answer>85</answer>"
    assert total_reward(wrapped, "85") == 1.0
    assert time.perf_counter() - start < 0.5


def test_model_folder_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in MODEL_FOLDER.iterdir()}
    assert set(files) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) <= 4_000_000


def test_tokenizer_files_are_those_that_the_code_writes(tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    for path in tmp_path.iterdir():
        assert json.loads(path.read_bytes()) == json.loads((MODEL_FOLDER / path.name).read_bytes())


@pytest.mark.parametrize(
    "text",
    [
        "",
        " lead and  trail ",
        "47+38=?",
        RIGHT,
        "a ,b .\n\ttabs\r\n",
        "the users' assistants <thin",
        "héllo 日本 🎉 \x00 ﬁ e\u0301",
        "".join(map(chr, range(0x20, 0x180))),
    ],
)
def test_text_round_trips(text: str, chat: Any) -> None:
    ids = chat.encode(text, add_special_tokens=False)
    assert chat.decode(ids) == text
    assert chat.decode(ids, skip_special_tokens=True) == text


def test_each_tag_is_one_token_and_ends_are_not_shown(chat: Any) -> None:
    for tag in ("<think>", "</think>", "<answer>", "</answer>", tokenizer.END):
        assert len(chat.encode(tag, add_special_tokens=False)) == 1
    assert chat.eos_token == tokenizer.END
    ids = chat.encode(RIGHT + tokenizer.END, add_special_tokens=False)
    assert chat.decode(ids, skip_special_tokens=True) == RIGHT


def test_chat_template_writes_the_prompt_that_the_model_learned(
    chat: Any, encoder: Tokenizer
) -> None:
    for row in task.evaluation_rows(20):
        text = tokenizer.prompt_text(row["prompt"][0]["content"])
        ids = chat.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        assert ids == encoder.encode(text).ids
        assert len(ids) == 15, "prompts of one length need no padding"


def test_chat_template_takes_all_roles(chat: Any) -> None:
    messages = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1+1=?"},
        {"role": "assistant", "content": "2"},
    ]
    assert chat.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1+1=?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n"
    )


def test_a_perfect_completion_fits_the_length_limit(encoder: Tokenizer) -> None:
    limit = settings.SETTINGS["max_completion_length"]
    for problem in task.problems_of(task.Split.TRAINING):
        assert len(encoder.encode(task.solution(problem) + tokenizer.END).ids) <= limit
