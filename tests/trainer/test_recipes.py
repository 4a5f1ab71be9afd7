"""The recipes as printed in the README: data, rewards and settings that belong together."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol import load_config
from grpo_protocol.config_input import read_toml
from grpo_trainer.dataset import load_dataset

SUMS = Path(__file__).resolve().parents[2] / "trainer" / "recipes" / "two_digit_sums"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sums")
    subprocess.run([sys.executable, str(SUMS / "make_data.py"), str(made)], check=True)
    return made


def test_no_sum_is_both_trained_on_and_held_out(folder: Path) -> None:
    asked: dict[str, set[str]] = {}
    for name in ("train", "held_out"):
        rows = load_dataset(folder / f"{name}.jsonl")
        asked[name] = {row.question for row in rows}
        assert len(asked[name]) == len(rows)
    assert len(asked["held_out"]) == 256
    assert not asked["train"] & asked["held_out"]
    assert len(asked["train"] | asked["held_out"]) == 90 * 90 - 2


def test_the_answers_are_right_and_the_examples_are_not_asked(folder: Path) -> None:
    for line in (folder / "train.jsonl").read_text().splitlines()[:200]:
        row = json.loads(line)
        *examples, question = [message["content"] for message in row["prompt"]]
        numbers = [int(word.strip("?")) for word in question.split() if word.strip("?").isdigit()]
        assert row["answer"] == str(sum(numbers))
        assert examples[1] == "<answer>43</answer>"
        assert question not in examples


def test_the_rewards_are_for_the_number_and_for_the_form() -> None:
    rewards: dict[str, Any] = runpy.run_path(str(SUMS / "rewards.py"))
    texts = ["<answer>43</answer>", " <answer>44</answer>\n", "43", "<answer>43</answer> or so"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert rewards["correct_sum"](completions, answer=["43"] * 4) == [1, 0, 0, 0]
    assert rewards["form"](completions, answer=["43"] * 4) == [1, 1, 0, 0]


@pytest.mark.parametrize(("name", "kind"), [("full", "full"), ("lora", "lora")])
def test_the_settings_are_valid(name: str, kind: str) -> None:
    config = load_config(read_toml(SUMS / f"{name}.toml"))
    assert config.fine_tune_type == kind
    assert config.batch_size * config.gradient_accumulation_steps == 16
    assert config.group_size == 16
