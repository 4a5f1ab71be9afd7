"""What events are made of: the base of all wire types, and the parts that stand inside events."""

import msgspec


class WireStruct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all: omits what is not known instead of sending null or zero."""


class MetricsHistoryItem(WireStruct, frozen=True):
    """One earlier step, as much as a chart needs."""

    step: int
    loss: float | None = None
    mean_reward: float | None = None
    std_advantage: float | None = None
    perplexity: float | None = None
    token_accuracy: float | None = None
    generation_time_ms: float | None = None
    training_time_ms: float | None = None


class Aggregates(WireStruct, frozen=True):
    """Totals and means over every step before the resume."""

    best_reward: float | None = None
    avg_reward: float | None = None
    reward_count: int = 0
    best_loss: float | None = None
    avg_loss: float | None = None
    loss_count: int = 0
    total_tokens: int = 0
    avg_generation_time_ms: float | None = None
    avg_training_time_ms: float | None = None


class ToolCall(WireStruct, frozen=True):
    """A call found in a completion; `arguments` is JSON text."""

    status: str
    name: str = ""
    arguments: str = ""
    raw_content: str = ""
    error: str | None = None


class Choice(WireStruct, frozen=True):
    """One answer a person can pick."""

    value: str
    label: str
    description: str | None = None
