"""What the objective of one optimizer step is: the settings, and what the whole step adds up to."""

from dataclasses import dataclass

from grpo_protocol.config import GRPOConfig
from grpo_protocol.settings.loss import SEQUENCE_LOSSES, RatioLevel

CISPO_CAP = 5.0
"""Cap of the ratio that ScaleRL (arXiv 2510.13786) recommends."""


@dataclass(frozen=True)
class StepObjective:
    """What does not change between the chunks of rows that one step is computed in."""

    config: GRPOConfig
    total_rows: int
    """Completions that the step trains on, over all its micro-batches."""
    total_tokens: int
    """Their tokens."""
    num_micro_batches: int = 1
    micro_batch_tokens: int | None = None
    """Those of the micro-batch at hand, when not all of its rows are computed together."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus in force."""
    entropy_threshold: float | None = None
    """Tokens below this entropy, in nats, get no policy gradient."""
    entropy_tokens: int | None = None
    """Tokens at or above it; without a threshold all of them."""

    @property
    def ratio_level(self) -> RatioLevel:
        """Of the setting, or the one that the loss is defined on."""
        by_loss: RatioLevel = "sequence" if self.config.loss_type in SEQUENCE_LOSSES else "token"
        return self.config.importance_sampling_level or by_loss

    @property
    def epsilon_high(self) -> float:
        """Upper clip; for cispo the cap of the ratio itself."""
        default = CISPO_CAP if self.config.loss_type == "cispo" else self.config.clip_epsilon
        return self.config.clip_epsilon_high or default
