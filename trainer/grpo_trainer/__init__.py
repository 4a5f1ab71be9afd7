"""GRPO training of language models on MLX.

`GRPOTrainer.create(config)` loads a model and `train(dataset)` trains it; the command line is a
thin layer over these two. Importing this package loads a fast BLAS, which has to happen before mlx
is imported, but not mlx itself: the names below are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from grpo_protocol.config import GRPOConfig
from grpo_protocol.config_input import ConfigError, load_config
from grpo_trainer import blas

if TYPE_CHECKING:
    from grpo_trainer.errors import TrainerError
    from grpo_trainer.trainer import GRPOTrainer, TrainResult

blas.load()

__all__ = ["ConfigError", "GRPOConfig", "GRPOTrainer", "TrainResult", "TrainerError", "load_config"]

_HOMES = {
    "GRPOTrainer": "grpo_trainer.trainer",
    "TrainResult": "grpo_trainer.trainer",
    "TrainerError": "grpo_trainer.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
