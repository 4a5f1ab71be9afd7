"""What one optimizer step came to, on either side."""

import math
from dataclasses import dataclass

import mlx.core as mx

from grpo_trainer.trees import number


@dataclass(frozen=True)
class StepResult:
    """Before clipping and before the weights move."""

    loss: float
    gradients: dict[str, mx.array]
    """By parameter name."""
    advantages: list[float | None]
    """Of every row of the rollout; None for one that is left out."""
    metrics: dict[str, float]
    """Under TRL's names."""
    micro_batches: int

    def scaled(self, factor: float) -> "StepResult":
        """With loss and gradients times `factor`."""
        gradients = {name: factor * gradient for name, gradient in self.gradients.items()}
        return StepResult(
            factor * self.loss, gradients, self.advantages, self.metrics, self.micro_batches
        )


def gradient_difference(ours: StepResult, theirs: StepResult) -> float:
    """The largest ‖a - b‖ / ‖b‖ of any parameter tensor."""
    assert ours.gradients.keys() == theirs.gradients.keys()
    return max(
        _norm(gradient - theirs.gradients[name]) / _norm(theirs.gradients[name])
        for name, gradient in ours.gradients.items()
    )


def total_difference(one: StepResult, other: StepResult) -> float:
    """‖a - b‖ / ‖b‖ over all parameters as one vector."""
    parts = [_norm(g - other.gradients[name]) for name, g in one.gradients.items()]
    return math.hypot(*parts) / math.hypot(*map(_norm, other.gradients.values()))


def _norm(array: mx.array) -> float:
    return math.sqrt(number((array * array).sum()))
