"""Typed rows of a run's record, as the dashboard shows them. What is unknown is `None`."""

from dataclasses import dataclass, field
from typing import Final, Literal

from grpo_tui.sample_query import SampleQuery

GenerationOrder = Literal["newest", "oldest", "best", "worst"]


@dataclass(frozen=True)
class RunRow:
    """One run. `status` is `crashed` where the record says running but no trainer lives."""

    id: str
    name: str | None
    model_name: str
    model_path: str | None
    status: str
    started_at: int
    ended_at: int | None
    steps: int
    """Rows of training_steps."""
    last_step: int | None
    last_reward: float | None
    config: str
    """JSON text."""

    @property
    def is_live(self) -> bool:
        return self.status == "running"


STEP_NUMBERS: Final = (
    "loss",
    "mean_reward",
    "std_reward",
    "mean_advantage",
    "std_advantage",
    "generation_time_ms",
    "reward_time_ms",
    "training_time_ms",
    "gradient_norm",
    "learning_rate",
    "peak_memory_mb",
    "active_memory_mb",
)
"""Columns of a step that hold a measured number."""


@dataclass(frozen=True)
class StepRow:
    """One optimizer step; `state` is `scored` until its update is recorded as well."""

    id: int
    step: int
    epoch: int | None
    loss: float | None
    mean_reward: float | None
    std_reward: float | None
    mean_advantage: float | None
    std_advantage: float | None
    total_tokens: int | None
    generation_time_ms: float | None
    reward_time_ms: float | None
    training_time_ms: float | None
    gradients_applied: bool | None
    gradient_norm: float | None
    learning_rate: float | None
    peak_memory_mb: float | None
    active_memory_mb: float | None
    state: str
    created_at: int
    metrics: dict[str, float | None] = field(default_factory=dict)
    """By TRL's slash names."""


@dataclass(frozen=True)
class GenerationRow:
    """One completion as a list shows it: the beginnings of its texts."""

    id: int
    step: int
    batch_index: int
    group_index: int
    prompt: str
    completion: str
    num_tokens: int
    finish_reason: str
    reward: float | None
    advantage: float | None


@dataclass(frozen=True)
class ToolCallRow:
    """A call that was found in a completion; `arguments` is JSON text."""

    call_index: int
    status: str
    tool_name: str | None
    arguments: str | None
    raw_content: str
    error_message: str | None


@dataclass(frozen=True)
class GenerationDetail:
    """One completion whole."""

    id: int
    run_id: str
    step: int
    batch_index: int
    group_index: int
    prompt: str
    expected_answer: str | None
    completion_text: str
    completion_raw: str
    thinking: str | None
    num_tokens: int
    finish_reason: str
    reward: float | None
    advantage: float | None
    created_at: int
    reward_details: dict[str, float | None] = field(default_factory=dict)
    token_ids: tuple[int, ...] = ()
    tool_calls: tuple[ToolCallRow, ...] = ()


@dataclass(frozen=True)
class EvaluationRow:
    """Result of an evaluation after `step` optimizer steps."""

    step: int
    name: str
    num_prompts: int
    metrics: dict[str, float | None]
    created_at: int


@dataclass(frozen=True)
class GenerationQuery:
    """Which completions of a run, and in which order."""

    order: GenerationOrder = "newest"
    step: int | None = None
    """Only those of this step, in the order of the batch unless by reward."""
    filter: SampleQuery = field(default_factory=SampleQuery)

    @property
    def is_by_reward(self) -> bool:
        return self.order in ("best", "worst")

    @property
    def is_filtered(self) -> bool:
        return bool(self.filter)
