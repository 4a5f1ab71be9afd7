"""The demo's training settings: the configuration keys whose values differ from the defaults.

They fit the bundled model, which is ten thousand times smaller than what the defaults are made for.
"""

from collections.abc import Callable

from grpo_trainer.demo import task


SETTINGS: dict[str, int | float | str] = {
    # The whole model fits in 1.5 MB: adapters would save nothing.
    "fine_tune_type": "full",
    # 0.36 million weights need far larger steps than a large model. 1e-4 to 3e-4 all work; below, 150
    # steps are too few.
    "learning_rate": 1.5e-4,
    # 96 completions a step: the mean reward of one step varies by about 0.07 between batches.
    "batch_size": 12,
    "group_size": 8,
    # A perfect completion has at most 23 tokens; the rest leaves room to see a bad one run on.
    "max_completion_length": 28,
    # The warm-started model is unsure where it matters; its own distribution explores enough.
    "temperature": 1.0,
    "max_steps": 150,
    "save_interval": 50,
    "loss_type": "grpo",
    "clip_epsilon": 0.2,
    "gradient_clip_norm": 1.0,
    # The run is too short for decay to do anything but blur the comparison before and after.
    "weight_decay": 0.0,
    "adamw_beta1": 0.9,
    "adamw_beta2": 0.999,
    "adamw_eps": 1e-8,
}

REWARDS: tuple[tuple[Callable[..., list[float]], float], ...] = ((task.correctness, 0.9), (task.form, 0.1))
"""Each reward function with its weight; the weights sum to 1, the largest total reward."""

TRAINING_ROWS = 150 * 12
"""One row per prompt of the run, so that 150 steps are one epoch and no prompt comes twice."""
