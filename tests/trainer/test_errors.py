"""The tree of failures: one root, and an exit code for each."""

import pytest

from grpo_trainer.errors import CheckpointError, ModelError, TrainerError, TrainingError
from grpo_trainer.output.recorder import RecorderError
from grpo_trainer.rewards.types import RewardError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelError(""), 2),
        (CheckpointError(""), 2),
        (RecorderError(""), 2),
        (RewardError("", function="f", step=1), 1),
        (TrainingError(""), 1),
    ],
)
def test_every_failure_has_the_one_root_and_its_exit_code(error: Exception, code: int) -> None:
    assert isinstance(error, TrainerError)
    assert error.exit_code == code
