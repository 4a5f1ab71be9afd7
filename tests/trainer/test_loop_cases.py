"""Public bug reports about the loop, as runs of the tiny model."""

import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from grpo_protocol.config import OutputStoreConfig
from grpo_protocol.messages import Generation, Step
from grpo_trainer import rollout
from grpo_trainer.checkpoint import read_state
from learners import are_identical, copy_of
from library_runs import Library, all_equal
from trainers import StartTrainer, training_words

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo", "gmpo"]

# --- M01: the whole group scores the same


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("reward", [1.0, -7.5])
def test_M01_equal_rewards_change_nothing_and_are_said_once(
    tmp_path: Path, reward: float, kl_coef: float, weight_decay: float
) -> None:
    library = Library(tmp_path, all_equal(reward), kl_coef=kl_coef, weight_decay=weight_decay)
    before = copy_of(library.trainer.policy.weights)
    assert library.train().status == "completed"
    assert are_identical(copy_of(library.trainer.policy.weights), before)
    assert [event.advantage for event in library.all(Generation)] == [0.0] * 24
    for step in library.all(Step):
        assert (step.loss, step.gradient_norm, step.gradients_applied) == (0.0, 0.0, False)
        assert (step.mean_reward, step.std_reward) == (reward, 0.0)
    told = [step.metrics["frac_reward_zero_std"] for step in library.all(Step)]
    in_log = [record["metrics"]["frac_reward_zero_std"] for record in library.records("step")]
    query = "SELECT metrics ->> '$.frac_reward_zero_std' FROM training_steps ORDER BY step"
    in_database = [value for (value,) in library.query(query)]
    assert told == in_log == in_database == [1.0] * 3
    (warning,) = library.logs("warn")
    assert "no learning signal" in warning
    assert not read_state(library.folder / "final").has_optimizer_state


def test_M01_a_run_that_teaches_nothing_ends_in_order(
    start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path
) -> None:
    code = "def ones(completions, **_):\n    return [1.0] * len(completions)\n"
    (tmp_path / "reward.py").write_text(code)
    trainer = start_trainer(training_words(tmp_path, qwen3_folder))
    assert trainer.wait() == 0, str(trainer)
    assert trainer.stderr.count("no learning signal") == 1


# --- M04: reward functions that abstain


def test_M04_abstaining_is_not_a_reward_of_zero(tmp_path: Path) -> None:
    def exact(completions: list[str], **_: Any) -> list[float | None]:
        return [1.0, None, None, 0.0, None, None, None, None]

    def form(completions: list[str], **_: Any) -> list[float | None]:
        return [None, None, 0.5, None, None, None, None, 1.0]

    library = Library(tmp_path, exact, form, max_steps=1)
    library.train()
    rewards = [1.0, None, 0.5, 0.0, None, None, None, 1.0]
    told = library.all(Generation)
    assert [event.reward for event in told] == rewards
    # Mean 0.5 and deviation 0.5 of the three that are known; the second group has one alone.
    expected = [0.5 / 0.5001, 0, 0, -0.5 / 0.5001, 0, 0, 0, 0]
    assert [event.advantage for event in told] == pytest.approx(expected)
    (step,) = library.all(Step)
    assert step.mean_reward == 0.625
    assert step.gradients_applied
    assert library.query("SELECT reward FROM generations ORDER BY id") == [(r,) for r in rewards]
    (warning,) = library.logs("warn")
    assert warning.startswith("step 1: 4 of 8 completions have no reward")
    assert "all of exact, form abstained, first at row " in warning


# --- M11: the objective teaches


def share_of_a(completions: list[str], **_: Any) -> list[float]:
    return [text.count("a") / max(len(text), 1) for text in completions]


@pytest.mark.parametrize("loss_type", LOSSES)
def test_M11_every_loss_raises_the_reward_with_default_settings(
    tmp_path: Path, loss_type: str
) -> None:
    library = Library(
        tmp_path,
        share_of_a,
        loss_type=loss_type,
        max_steps=60,
        group_size=8,
        learning_rate=1e-3,
        log_jsonl=False,
        output_store=OutputStoreConfig(enabled=False),
    )
    library.train()
    steps = library.all(Step)
    rewards = [step.mean_reward for step in steps]
    assert sum(rewards[:10]) / 10 < 0.1
    assert sum(rewards[-10:]) / 10 > 0.5
    for step in steps:
        has_spread = step.metrics["frac_reward_zero_std"] < 1
        assert step.gradients_applied == (step.gradient_norm > 0) == has_spread


# --- M19: frozen sampling


def run_on_one_prompt(folder: Path, **settings: Any) -> Library:
    library = Library(folder, temperature=1.0, group_size=8, max_steps=6, batch_size=1, **settings)
    library.train([{"prompt": "say something"}])
    return library


def groups_of(library: Library) -> list[list[tuple[int, ...]]]:
    """The token ids of each step's group."""
    told = library.all(Generation)
    return [[tuple(e.token_ids) for e in told if e.step == step] for step in range(1, 7)]


def test_M19_completions_differ_in_a_group_and_groups_between_steps(tmp_path: Path) -> None:
    library = run_on_one_prompt(tmp_path)
    groups = groups_of(library)
    assert all(len(set(group)) == 8 for group in groups)
    assert len({tuple(group) for group in groups}) == 6
    assert library.logs("warn") == []


def test_M19_a_thread_draws_what_the_main_thread_draws(tmp_path: Path) -> None:
    found: list[list[list[tuple[int, ...]]]] = []

    def work() -> None:
        found.append(groups_of(run_on_one_prompt(tmp_path / f"thread {len(found)}")))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    here = groups_of(run_on_one_prompt(tmp_path / "main"))
    assert found == [here, here]


def test_M19_a_sampler_that_repeats_itself_is_noticed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frozen(logits_B_V: mx.array, keys: mx.array) -> mx.array:
        return mx.stack([mx.random.categorical(row, key=mx.random.key(0)) for row in logits_B_V])

    monkeypatch.setattr(rollout, "_categorical", frozen)
    library = run_on_one_prompt(tmp_path)
    assert [len(set(group)) for group in groups_of(library)] == [1] * 6
    identical = [text for text in library.logs("warn") if "are identical" in text]
    assert len(identical) == 1
    assert "temperature=1.0" in identical[0]
