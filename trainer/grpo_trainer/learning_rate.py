"""The learning rate of each step: a peak, a warm-up towards it, and a decay from it."""

import math

from grpo_protocol.config import GRPOConfig
from grpo_protocol.settings.optimizer import DEFAULT_LEARNING_RATES


def learning_rate_of(config: GRPOConfig) -> float:
    """The peak: the setting, or the default of the kind of fine-tuning."""
    return config.learning_rate or DEFAULT_LEARNING_RATES[config.fine_tune_type]


def learning_rate_at(config: GRPOConfig, step: int, total_steps: int) -> float:
    """The rate of `step`, which counts from 1.

    It rises in equal parts over `warmup_steps`, the last of which has the peak. With a decay the
    first step after them has the peak too, and the step after the last one would have 0.
    """
    peak, warmup = learning_rate_of(config), config.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    progress = (step - 1 - warmup) / max(total_steps - warmup, 1)
    match config.lr_schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - progress)
        case "cosine":
            return peak * (1 + math.cos(math.pi * progress)) / 2
