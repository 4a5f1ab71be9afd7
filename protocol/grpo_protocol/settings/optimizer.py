"""How a gradient becomes a step."""

from typing import Annotated, Literal

from grpo_protocol.settings.kinds import Count, Fraction, Interval, NotNegative, Positive, key
from grpo_protocol.settings.memory import MemorySettings

OptimizerType = Literal["adamw", "sgd", "adafactor", "muon"]

DEFAULT_LEARNING_RATES = {"lora": 1e-5, "dora": 1e-5, "full": 1e-6}
"""By kind of fine-tuning."""


class OptimizerSettings(MemorySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Group `Optimizer`."""

    optimizer_type: Annotated[
        OptimizerType,
        key(
            "Optimizer",
            "Moves the weights; muon leaves vectors, embeddings and the head to AdamW.",
        ),
    ] = "adamw"
    learning_rate: Annotated[
        Positive | None,
        key(
            "Optimizer",
            "Peak learning rate; without it 1e-5 for adapters, 1e-6 for all weights, sgd needs it.",
            live=True,
        ),
    ] = None
    lr_schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        key("Optimizer", "How the learning rate falls from its peak to the end of the run."),
    ] = "constant"
    warmup_steps: Annotated[
        Interval, key("Optimizer", "Steps in which the learning rate rises to its peak.")
    ] = 0
    weight_decay: Annotated[
        NotNegative,
        key(
            "Optimizer", "Each step shrinks a weight by this times the learning rate, as in AdamW."
        ),
    ] = 0.01
    adamw_beta1: Annotated[
        Fraction, key("Optimizer", "Decay of AdamW's running mean of gradients.")
    ] = 0.9
    adamw_beta2: Annotated[
        Fraction, key("Optimizer", "Decay of AdamW's running mean of squared gradients.")
    ] = 0.999
    adamw_eps: Annotated[Positive, key("Optimizer", "Added to the root that AdamW divides by.")] = (
        1e-8
    )
    sgd_momentum: Annotated[
        Fraction, key("Optimizer", "Share of its last move that SGD keeps in the next.")
    ] = 0.0
    muon_momentum: Annotated[
        Fraction, key("Optimizer", "Decay of Muon's running mean of gradients.")
    ] = 0.95
    gradient_clip_norm: Annotated[
        Positive | None,
        key(
            "Optimizer",
            "Largest L2 norm of the whole accumulated gradient; off without it.",
            live=True,
        ),
    ] = 1.0
    gradient_clip_value: Annotated[
        Positive | None,
        key("Optimizer", "Largest absolute value of one gradient element; off without it."),
    ] = None
    max_nan_gradients: Annotated[
        Count,
        key("Optimizer", "Steps with a loss or gradient that is not finite before the run fails."),
    ] = 100
