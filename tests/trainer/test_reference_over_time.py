"""The reference of the KL term over time: the same after a resume, moved only when asked."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from msgspec.structs import replace

from checkpoints import state_of
from grpo_protocol.messages import Step
from grpo_trainer.checkpoint import load_checkpoint, save_checkpoint
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.objective_state import state_of as objective_of
from grpo_trainer.reference import Reference
from grpo_trainer.tensor_file import read_tensors, write_tensors
from grpo_trainer.trees import leaves
from learners import are_identical, config_of, copy_of, make_learner, make_rows
from library_runs import Library
from sent_commands import send_after_steps
from tiny_model import make_model

KL: dict[str, Any] = {"kl_coef": 0.1}
BIG: dict[str, Any] = {"learning_rate": 0.05, "gradient_clip_norm": None}


def train(learner: Learner, steps: int, **settings: Any) -> None:
    for step in range(1, steps + 1):
        config = config_of(**{**KL, **BIG, **settings})
        rows = learner.with_logprobs(make_rows(), config)
        assert learner.update([rows], config, step).applied


def ref_logprobs(learner: Learner) -> list[float]:
    rows = learner.with_logprobs(make_rows(), config_of(**KL))
    return [number for row in rows for number in row.ref_logprobs or [float("nan")]]


# --- after a resume


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_W56_after_a_resume_the_reference_is_that_of_the_first_start(
    tmp_path: Path, kind: str
) -> None:
    settings: dict[str, Any] = {"fine_tune_type": kind, "learning_rate": 1e-2, "max_steps": 4, **KL}
    whole = Library(tmp_path / "whole", **settings)
    whole.train()
    stopped = Library(tmp_path, **settings)
    with pytest.MonkeyPatch.context() as monkeypatch:
        send_after_steps(stopped, monkeypatch, {2: ["STOP"]})
        stopped.train()
    again = Library(tmp_path, resume_from_checkpoint="latest", **settings)
    again.train()
    expected = [step.metrics["kl"] for step in whole.all(Step)][2:]
    assert [step.metrics["kl"] for step in again.all(Step)] == expected
    assert min(expected) > 1e-4


def other_base(folder: Path) -> Path:
    """A model of the same shapes that was trained a little further."""
    make_model(folder)
    path = folder / "model.safetensors"
    tensors = {name: 1.001 * array for name, array in read_tensors(path).items()}
    mx.eval(tensors)
    write_tensors(path, tensors)
    return folder


@pytest.mark.parametrize(
    ("kind", "sync"), [("lora", 0), ("full", 0), ("lora", 1)], ids=["lora", "full", "moved"]
)
def test_W56_another_base_model_is_refused(tmp_path: Path, kind: str, sync: int) -> None:
    settings: dict[str, Any] = {"fine_tune_type": kind, "ref_sync_interval": sync, **KL}
    Library(tmp_path, max_steps=2, **settings).train()
    other = str(other_base(tmp_path / "other"))
    run = Library(tmp_path, model=other, resume_from_checkpoint="latest", **settings)
    with pytest.raises(CheckpointError, match=r"KL reference is the model .* this is another") as e:
        run.train()
    assert "\n" not in str(e.value)


def test_W56_other_adapters_are_refused(tmp_path: Path) -> None:
    Library(tmp_path, max_steps=2, **KL).train()
    run = Library(tmp_path, seed=5, resume_from_checkpoint="latest", **KL)
    with pytest.raises(CheckpointError, match="KL reference is the model"):
        run.train()


# --- moving it


@pytest.mark.parametrize("alpha", [0.25, 1.0])
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_reference_moves_by_alpha_towards_the_policy(kind: str, alpha: float) -> None:
    learner = make_learner(fine_tune_type=kind, **KL, **BIG)
    reference = learner.reference
    assert reference is not None
    before = copy_of(reference.weights)
    train(learner, 1)
    policy = copy_of(learner.policy.weights)
    reference.move_towards_policy(alpha)
    for name, array in leaves(reference.weights):
        expected = alpha * policy[name] + (1 - alpha) * before[name]
        assert mx.allclose(array, expected, atol=1e-6).item(), name
    assert are_identical(copy_of(learner.policy.weights), policy)


def test_the_reference_moves_after_every_step_that_the_interval_divides() -> None:
    learner = make_learner(**KL, **BIG)
    reference = learner.reference
    assert reference is not None
    settings = {**KL, **BIG, "ref_sync_interval": 2, "ref_mixup_alpha": 0.5}
    moves = []
    for step in range(1, 6):
        before, config = copy_of(reference.weights), config_of(**settings)
        learner.update([learner.with_logprobs(make_rows(), config)], config, step)
        moves.append(not are_identical(copy_of(reference.weights), before))
    assert moves == [False, True, False, True, False]


def test_a_moved_reference_is_what_the_next_rows_are_held_to() -> None:
    learner = make_learner(**KL, **BIG)
    train(learner, 2, ref_sync_interval=2, ref_mixup_alpha=1.0)
    policy = learner.scores(make_rows(), config_of())[0]
    assert ref_logprobs(learner) == pytest.approx([x for line in policy for x in line], abs=1e-6)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_a_moved_reference_is_saved_and_restored(tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {"fine_tune_type": kind, **KL}
    learner = make_learner(**settings, **BIG)
    train(learner, 1, ref_sync_interval=2)
    save_checkpoint(tmp_path / "before", learner, state_of(learner, 1))
    assert not (tmp_path / "before" / "reference.safetensors").exists()
    train(learner, 2, ref_sync_interval=2)
    state = replace(state_of(learner, 2), objective=objective_of(learner, adaptive_entropy=False))
    save_checkpoint(tmp_path / "after", learner, state)
    again = make_learner(**settings, **BIG)
    load_checkpoint(tmp_path / "after", again)
    assert isinstance(again.reference, Reference)
    assert isinstance(learner.reference, Reference)
    assert are_identical(copy_of(again.reference.weights), copy_of(learner.reference.weights))
    assert ref_logprobs(again) == ref_logprobs(learner)
