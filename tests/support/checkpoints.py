"""Checkpoints of learners over tiny models, for tests."""

from pathlib import Path
from typing import Any

from grpo_trainer import checkpoint
from grpo_trainer.checkpoint import DatasetState, TrainingState
from grpo_trainer.learner import Learner
from learners import config_of, make_learner, make_rows

KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "full": {"fine_tune_type": "full"},
    "full-bfloat16": {"fine_tune_type": "full", "dtype": "bfloat16"},
}


def state_of(learner: Learner, step: int, run_id: str = "run-1") -> TrainingState:
    """What a run of one token a step would save."""
    return TrainingState(
        step=step,
        epoch=0,
        timestamp="2025-01-01T00:00:00+00:00",
        dataset=DatasetState(6, "abc"),
        has_optimizer_state=learner.updates > 0,
        run_id=run_id,
        seed=0,
        num_tokens=100,
    )


def trained(kind: str, steps: int = 2) -> Learner:
    """A learner after some steps."""
    learner = make_learner(**KINDS[kind], learning_rate=1e-3)
    for step in range(1, steps + 1):
        learner.update([make_rows()], settings(kind), step)
    return learner


def settings(kind: str) -> Any:
    """The settings of such a learner."""
    return config_of(**KINDS[kind], learning_rate=1e-3)


def save_state(folder: Path, step: int, run_id: str = "run-1") -> None:
    """A complete checkpoint, as far as choosing and removing go."""
    folder.mkdir()
    learner = type("NoUpdates", (), {"updates": 0})()
    checkpoint._write_json(folder / checkpoint.STATE_NAME, state_of(learner, step, run_id))
    checkpoint._write_manifest(folder)
