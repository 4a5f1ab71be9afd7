"""The demo's settings: what `GRPOConfig` says otherwise for this run.

They fit the bundled model, which is a thousand times smaller than the models that the general
defaults are meant for.
"""

from collections.abc import Callable
from typing import Any, Final

from grpo_trainer.demo import task

REWARDS: Final[tuple[tuple[Callable[..., list[float]], float], ...]] = (
    (task.correctness, 0.9),
    (task.form, 0.1),
)
"""Each reward function with its weight; the weights sum to 1, the largest total reward."""

SETTINGS: Final[dict[str, Any]] = {
    "model_name": "demo",
    "fine_tune_type": "full",  # the whole model is 1.5 MB: adapters would save nothing
    # From 5e-5 to 3e-4 the run reaches the same place; 2e-5 is slow and 1e-3 collapses.
    "learning_rate": 1.5e-4,
    "weight_decay": 0.0,  # 150 steps are too few for decay to help
    # 96 completions a step keep the curve smooth: with 64 the chance of an easy first batch grows.
    "batch_size": 12,
    "group_size": 8,
    "max_completion_length": 28,  # a perfect completion has at most 23 tokens
    # The model is unsure just where it errs, so its own distribution explores enough.
    "temperature": 1.0,
    "max_steps": 150,
    "save_interval": 50,
    "eval_interval": 0,  # before and after; an evaluation costs as much time as one or two steps
    "reward_weights": [weight for _, weight in REWARDS],
    # The general defaults, named because the figures of this run depend on them.
    "loss_type": "grpo",
    "clip_epsilon": 0.2,
    "gradient_clip_norm": 1.0,
    "adamw_beta1": 0.9,
    "adamw_beta2": 0.999,
    "adamw_eps": 1e-8,
}

TRAINING_ROWS: Final = 150 * 12
"""One row for each prompt of the run: 150 steps are one epoch, and no prompt comes twice."""
