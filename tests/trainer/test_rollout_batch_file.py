"""Rollouts in a checkpoint: they come back as they were, and foreign ones are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol import GRPOConfig
from grpo_trainer.errors import CheckpointError
from grpo_trainer.plan import TrainingPlan
from grpo_trainer.rollout import Completion
from grpo_trainer.rollout_batch import MiniBatch, RolloutBatch, ScoredGroup
from grpo_trainer.rollout_batch_file import (
    ROLLOUTS_NAME,
    read_rollout_batch,
    write_rollout_batch,
)
from grpo_trainer.training_rows import TrainingRow


def plan_of(**settings: Any) -> TrainingPlan:
    return TrainingPlan(6, GRPOConfig(**{"num_iterations": 3, **settings}))


def rollouts() -> RolloutBatch:
    """With numbers whose shortest decimal form is long, and with all that may be unknown."""
    completion = Completion([5, 6, 258], "stop", [-0.1, -1 / 3, -1e-9], "\n\n")
    row = TrainingRow([1, 2], [5, 6, 258], 2 / 3, [-0.1, -1 / 3, -1e-9], [-0.2, -0.3, -7e-12])
    group = ScoredGroup(
        prompt=4,
        completions=[completion],
        texts=['a "quoted" \u2028 line\n'],
        rewards=[None],
        reward_parts={"letters": [None], "digits": [0.1]},
        advantages=[None],
    )
    return RolloutBatch(1, 0.7, [MiniBatch([group], [[row], []], [group])], sampling_rounds=2)


def test_rollouts_come_back_as_they_were(tmp_path: Path) -> None:
    write_rollout_batch(tmp_path, rollouts())
    assert read_rollout_batch(tmp_path, 1, plan_of(), {}) == rollouts()
    assert read_rollout_batch(tmp_path, 2, plan_of(), {}) == rollouts()


def test_rollouts_are_not_read_where_new_ones_are_sampled(tmp_path: Path) -> None:
    (tmp_path / ROLLOUTS_NAME).write_text("not JSON")
    for step in (0, 3, 6):
        assert read_rollout_batch(tmp_path, step, plan_of(), {}) is None


@pytest.mark.parametrize("content", [None, "", "{", '{"first_step": 1}', "\udcff"])
def test_rollouts_that_are_missing_or_broken_are_refused(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / ROLLOUTS_NAME
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"rollouts\.json: cannot be read: ") as caught:
        read_rollout_batch(tmp_path, 1, plan_of(), {})
    assert "\n" not in str(caught.value)


def test_settings_that_say_the_same_in_other_words_are_taken(tmp_path: Path) -> None:
    write_rollout_batch(tmp_path, rollouts())
    settings = {"num_iterations": 3, "steps_per_generation": 1, "seed": 0, "shuffle": True}
    assert read_rollout_batch(tmp_path, 1, plan_of(), settings) == rollouts()


def test_the_refusal_names_every_setting_that_is_another(tmp_path: Path) -> None:
    write_rollout_batch(tmp_path, rollouts())
    settings = {"num_iterations": 2, "batch_size": 4, "seed": 0, "shuffle": True}
    with pytest.raises(CheckpointError) as caught:
        read_rollout_batch(tmp_path, 1, plan_of(), settings)
    assert str(caught.value).endswith(
        ": batch_size 4 → 1, num_iterations 2 → 3: step 2 would train on other rollouts than the "
        "run had for it; resume with the settings of the run"
    )


def test_rollouts_without_reference_do_not_serve_a_KL_term(tmp_path: Path) -> None:
    write_rollout_batch(tmp_path, rollouts())
    with pytest.raises(CheckpointError, match=r"kl_coef=0\.1: the rollouts that step 2 "):
        read_rollout_batch(tmp_path, 1, plan_of(kl_coef=0.1), {})
    assert json.loads((tmp_path / ROLLOUTS_NAME).read_text())["first_step"] == 1


@pytest.mark.parametrize(
    ("name", "before"),
    [("repetition_penalty", 1.5), ("dtype", "bfloat16"), ("frequency_penalty", 1)],
)
def test_rollouts_scored_under_another_distribution_are_refused(
    tmp_path: Path, name: str, before: Any
) -> None:
    write_rollout_batch(tmp_path, rollouts())
    now = getattr(plan_of().config, name)
    with pytest.raises(
        CheckpointError, match=rf"{name} {before} → {now}: step 2 trains on rollouts"
    ):
        read_rollout_batch(tmp_path, 1, plan_of(), {name: before})
    assert read_rollout_batch(tmp_path, 0, plan_of(), {name: before}) is None
