"""Failures that end a run, each with one line for people.

    TrainerError
    ├── ModelError          the model cannot be loaded            (exit 2)
    ├── CheckpointError     a checkpoint cannot be used           (exit 2)
    ├── RecorderError       the database cannot be used           (exit 2; in output.recorder)
    ├── RewardError         a reward function failed              (exit 1; in rewards.types)
    └── TrainingError       the run cannot go on                  (exit 1)

Settings and datasets that cannot be raise `grpo_protocol.ConfigError` (exit 2).
"""


class TrainerError(Exception):
    """Root of all; `exit_code` is what the command line returns."""

    exit_code = 1


class ModelError(TrainerError):
    """The model cannot be loaded or trained as asked."""

    exit_code = 2


class CheckpointError(TrainerError):
    """A checkpoint is missing, incomplete, or of another model."""

    exit_code = 2


class TrainingError(TrainerError):
    """Training cannot go on."""


MODEL_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,  # and NotImplementedError
    TypeError,
    ValueError,
)
"""What architectures raise when they are asked for something that they were not written for."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line of at most 200 characters; what a colon announces with it."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:200]
