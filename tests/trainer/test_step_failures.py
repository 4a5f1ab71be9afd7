"""Steps that fail: gradients that are no numbers, and errors in the middle of an update."""

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from grpo_protocol.messages import Step
from grpo_trainer.checkpoint import load_checkpoint
from grpo_trainer.errors import TrainingError
from grpo_trainer.tensor_file import read_tensors
from learners import are_identical, copy_of
from library_runs import Library


def break_gradients(
    library: Library, steps: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes the loss of these steps NaN, and what is measured of them."""
    update = library.trainer.learner.update

    def broken(micro_batches: Any, config: Any, step: int, **options: Any) -> Any:
        if step in steps:
            micro_batches = [
                [replace(row, advantage=math.nan) for row in batch] for batch in micro_batches
            ]
        result = update(micro_batches, config, step, **options)
        if step in steps:
            unsound = {"entropy": math.nan, "kl": math.inf}
            result = replace(result, metrics={**result.metrics, **unsound})
        return result

    monkeypatch.setattr(library.trainer.learner, "update", broken)


def test_M26_one_bad_gradient_costs_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, max_steps=4)
    break_gradients(library, [2], monkeypatch)
    assert library.train().status == "completed"
    assert [step.gradients_applied for step in library.all(Step)] == [True, False, True, True]
    assert math.isnan(library.all(Step)[1].loss)
    assert len([text for text in library.logs("error") if "not finite" in text]) == 1
    assert library.trainer.learner.is_finite()
    with sqlite3.connect(library.folder / "outputs.db") as db:
        losses = [row[0] for row in db.execute("SELECT loss FROM training_steps ORDER BY step")]
    assert losses[1] is None
    assert None not in (losses[0], losses[2])
    bad = library.all(Step)[1].metrics
    assert (bad["entropy"], bad["kl"]) == (None, None)
    ((recorded,),) = library.query("SELECT metrics FROM training_steps WHERE step = 2")
    assert json.loads(recorded) == bad
    assert library.records("step")[1]["metrics"] == bad


def test_M26_bad_gradients_for_ever_end_the_run_and_spoil_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(
        tmp_path, max_steps=50, save_interval=1, max_checkpoints=2, max_nan_gradients=3
    )
    break_gradients(library, range(4, 50), monkeypatch)
    with pytest.raises(
        TrainingError, match="3 steps had a loss or gradient that is not finite; lower"
    ):
        library.train()
    assert len(library.all(Step)) == 5
    for folder in library.folder.glob("*/adapters.safetensors"):
        tensors = read_tensors(folder)
        assert all(bool(mx.isfinite(w).all()) for w in tensors.values())
    with sqlite3.connect(library.folder / "outputs.db") as db:
        assert db.execute("SELECT status FROM training_runs").fetchone() == ("crashed",)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_R32_a_failure_while_training_keeps_the_samples_and_saves_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    library = Library(tmp_path, fine_tune_type=kind, learning_rate=1e-3)
    learner = library.trainer.learner
    gradient = learner.gradient
    weights: list[dict[str, mx.array]] = []

    def fail_at_3(*args: Any) -> Any:
        result = gradient(*args)
        if learner.updates == 2:
            weights.append(copy_of(learner.policy.weights))
            raise MemoryError("no room")
        return result

    monkeypatch.setattr(learner, "gradient", fail_at_3)
    with pytest.raises(MemoryError):
        library.train()
    with sqlite3.connect(library.folder / "outputs.db") as db:
        steps = db.execute("SELECT step, state FROM training_steps ORDER BY step").fetchall()
        assert steps == [(1, "done"), (2, "done"), (3, "scored")]
        assert db.execute("SELECT count(*) FROM generations").fetchone() == (24,)
        assert db.execute("SELECT status FROM training_runs").fetchone() == ("crashed",)
    (saved,) = library.folder.glob("emergency-*")
    assert saved.name == "emergency-2"
    again = Library(tmp_path / "again", fine_tune_type=kind)
    state = load_checkpoint(saved, again.trainer.learner)
    assert state.step == 2
    assert state.num_tokens == library.all(Step)[-1].metrics["num_tokens"]
    assert are_identical(copy_of(again.trainer.policy.weights), weights[0])
    again.trainer.close()
