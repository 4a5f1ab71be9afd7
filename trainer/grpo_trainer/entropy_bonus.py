"""The weight of the entropy bonus, fixed or steered towards a target.

The adaptive form follows Skywork-OR1 (arXiv 2505.22312): the weight rises by a notch after a step
whose entropy was at or below the target and falls by one otherwise, and the bonus is given only
while the entropy is at or below the target.
"""

import msgspec

from grpo_protocol.config import GRPOConfig


class EntropyState(msgspec.Struct, frozen=True, rename="camel"):
    """What a checkpoint keeps of it."""

    coef: float
    last_entropy: float | None


class EntropyBonus:
    """The weight that is in force from step to step."""

    def __init__(self, config: GRPOConfig) -> None:
        self.state = EntropyState(config.entropy_coef, None)

    def weight(self, config: GRPOConfig) -> float:
        """What the next step's mean entropy is multiplied by."""
        if not config.adaptive_entropy:
            return config.entropy_coef
        last = self.state.last_entropy
        return self.state.coef if last is not None and last <= config.entropy_target else 0.0

    def observe(self, entropy: float, config: GRPOConfig) -> None:
        """Takes note of a step's mean entropy, in nats a token."""
        if not config.adaptive_entropy:
            return
        notch = config.entropy_coef_delta
        coef = self.state.coef + (notch if entropy <= config.entropy_target else -notch)
        coef = min(max(coef, config.entropy_coef_min), config.entropy_coef_max)
        self.state = EntropyState(coef, entropy)
