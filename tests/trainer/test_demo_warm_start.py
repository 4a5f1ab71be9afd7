"""The script that builds the bundled model, and what the bundled model can do."""

import random
from pathlib import Path
from typing import Any

import pytest

from grpo_trainer import blas
from grpo_trainer.demo import task

PLAIN = task.Problem(12, 34)
CARRY = task.Problem(47, 38)


@pytest.fixture(scope="module")
def warm_start() -> Any:
    blas.load()  # before mlx, which takes the BLAS that it finds in the process
    from grpo_trainer.demo import warm_start

    return warm_start


def examples(warm_start: Any, problem: task.Problem, **recipe: float) -> list[str]:
    rng = random.Random(0)
    exact = {"forgotten_carry": 0.0, "slip": 0.0, "missing_tags": 0.0}
    chosen = warm_start.Recipe(**(exact | recipe))
    return [warm_start.sloppy_solution(problem, chosen, rng) for _ in range(400)]


def test_a_recipe_without_mistakes_gives_perfect_examples(warm_start: Any) -> None:
    for problem in (PLAIN, CARRY):
        assert set(examples(warm_start, problem)) == {task.solution(problem)}


def test_each_mistake_is_as_frequent_as_the_recipe_says(warm_start: Any) -> None:
    forgot = "<think>7+8=15 4+3=7</think><answer>75</answer>"
    assert 240 < examples(warm_start, CARRY, forgotten_carry=0.7).count(forgot) < 320
    assert set(examples(warm_start, PLAIN, forgotten_carry=1.0)) == {task.solution(PLAIN)}
    bare = "<think>7+8=15 4+3+1=8</think>85"
    assert 80 < examples(warm_start, CARRY, missing_tags=0.3).count(bare) < 160
    slipped = set(examples(warm_start, CARRY, slip=0.5))
    assert "<think>7+8=16 4+3+1=8</think><answer>86</answer>" in slipped
    assert "<think>7+8=15 4+3+1=7</think><answer>75</answer>" in slipped


def test_the_loss_counts_completions_and_their_end_alone(warm_start: Any) -> None:
    ids, mask = warm_start.collate([([1, 2, 3, 4], 2), ([1, 2, 3], 2)], 0)
    assert ids.tolist() == [[1, 2, 3, 4], [1, 2, 3, 0]]
    assert mask.tolist() == [[0, 1, 1], [0, 1, 0]]


def test_the_script_builds_a_model_that_mlx_lm_loads(warm_start: Any, tmp_path: Path) -> None:
    import mlx_lm

    recipe = warm_start.Recipe(steps=3, batch_size=4, warmup_steps=1)
    for folder in ("one", "two"):
        warm_start.build(tmp_path / folder, seed=5, recipe=recipe)
    files = sorted((tmp_path / "one").iterdir())
    assert [f.name for f in files] == sorted(f.name for f in warm_start.MODEL_FOLDER.iterdir())
    assert all(f.read_bytes() == (tmp_path / "two" / f.name).read_bytes() for f in files)
    model, _ = mlx_lm.load(str(tmp_path / "one"))
    bundled, _ = mlx_lm.load(str(warm_start.MODEL_FOLDER))
    assert str(model) == str(bundled)


def test_the_bundled_model_adds_without_carry_only(warm_start: Any) -> None:
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(warm_start.MODEL_FOLDER))

    def greedy(problem: task.Problem) -> str:
        prompt = tokenizer.apply_chat_template(
            task.to_row(problem)["prompt"], add_generation_prompt=True
        )
        text: str = mlx_lm.generate(model, tokenizer, prompt, max_tokens=28)
        return text

    assert greedy(PLAIN) == task.solution(PLAIN)
    assert greedy(CARRY) == "<think>7+8=15 4+3=7</think><answer>75</answer>"
