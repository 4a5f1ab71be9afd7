"""The events a trainer writes to its stdout, one JSON object per line.

Each event is a frozen struct whose `type` is in snake_case and whose fields are in camelCase on the
wire. Names and units follow the mlx-node GRPO trainer, so its recorded streams decode here; what it
lacks is optional. Unknown fields are ignored, so that a newer trainer can talk to an older reader.

Durations that end in `_ms` are milliseconds, in `_secs` seconds; memory is in megabytes of 10^6
bytes. A float that was NaN or infinite arrives as `None`.
"""

from typing import Literal, TypeAlias

from grpo_protocol.config import ConfigValues
from grpo_protocol.message_parts import Aggregates as Aggregates
from grpo_protocol.message_parts import Choice as Choice
from grpo_protocol.message_parts import MetricsHistoryItem as MetricsHistoryItem
from grpo_protocol.message_parts import ToolCall as ToolCall
from grpo_protocol.message_parts import WireStruct

PROTOCOL_VERSION = 1

LogLevel = Literal["debug", "info", "warn", "error"]
LogSource = Literal["trainer", "stdout", "stderr", "reward"]
Phase = Literal["generating", "scoring", "training", "saving", "evaluating"]
CheckpointKind = Literal["periodic", "final", "stop", "manual", "emergency"]
FinishReason = Literal["stop", "length", "repetition"]
RunStatus = Literal["completed", "stopped"]


class Hello(WireStruct, frozen=True, tag="hello"):
    """First line of a trainer: who speaks, and what it understands."""

    protocol_version: int
    trainer_version: str
    pid: int
    capabilities: list[str] = []


class Status(WireStruct, frozen=True, tag="status"):
    """Something slow before the first step, such as loading or downloading a model."""

    phase: str
    message: str


class Log(WireStruct, frozen=True, tag="log"):
    """One line of text for people; `source` tells who wrote it."""

    level: LogLevel
    message: str
    source: LogSource = "trainer"


class DatabasePath(WireStruct, frozen=True, tag="database_path"):
    """Where the run is recorded, sent once its row exists."""

    path: str
    run_id: str
    run_name: str | None = None


class ResumeState(WireStruct, frozen=True, tag="resume_state"):
    """Sent on resume with `step` > 0: position, the last 60 steps (oldest first), and totals."""

    step: int
    epoch: int
    total_epochs: int
    step_in_epoch: int
    total_steps_in_epoch: int
    metrics_history: list[MetricsHistoryItem] = []
    aggregates: Aggregates = Aggregates()


class Init(WireStruct, frozen=True, tag="init"):
    """Training begins. `config` holds every effective setting that the trainer has."""

    model: str
    config: ConfigValues
    max_steps: int | None = None
    """Optimizer steps that the whole run will take, when it knows them."""


class EpochStart(WireStruct, frozen=True, tag="epoch_start"):
    """`epoch` counts from 1; `num_batches` is the number of steps in the epoch."""

    epoch: int
    total_epochs: int
    num_batches: int


class PhaseChange(WireStruct, frozen=True, tag="phase"):
    """What the running step does now; `done` of `total` in units of that phase, if known."""

    step: int
    phase: Phase
    done: int | None = None
    total: int | None = None


class Step(WireStruct, frozen=True, tag="step"):
    """One optimizer step is complete. `metrics` uses TRL's slash names."""

    step: int
    loss: float | None
    total_tokens: int
    """Completion tokens generated in this step."""
    mean_reward: float | None = None
    std_reward: float | None = None
    mean_advantage: float | None = None
    std_advantage: float | None = None
    perplexity: float | None = None
    token_accuracy: float | None = None
    generation_time_ms: float | None = None
    reward_time_ms: float | None = None
    training_time_ms: float | None = None
    peak_memory_mb: float | None = None
    active_memory_mb: float | None = None
    epoch: int | None = None
    """Counts from 1, as in `epoch_start`."""
    step_in_epoch: int | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    gradients_applied: bool | None = None
    metrics: dict[str, float | None] = {}


class Generation(WireStruct, frozen=True, tag="generation"):
    """One completion of the step just reported. Texts are never shortened."""

    index: int
    """Position in the step's completions."""
    prompt: str
    """Content of the last user message."""
    completion: str
    reward: float | None
    tokens: int
    reward_details: dict[str, float | None] = {}
    """Reward of each function, before weights."""
    step: int | None = None
    prompt_index: int | None = None
    group_index: int | None = None
    advantage: float | None = None
    expected_answer: str | None = None
    finish_reason: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] = []
    token_ids: list[int] = []


class Checkpoint(WireStruct, frozen=True, tag="checkpoint"):
    """A checkpoint is complete on disk."""

    path: str
    step: int
    kind: CheckpointKind | None = None


class Eval(WireStruct, frozen=True, tag="eval"):
    """Result of an evaluation on held-out prompts after `step` optimizer steps."""

    step: int
    name: str
    num_prompts: int
    metrics: dict[str, float | None]


class EpochEnd(WireStruct, frozen=True, tag="epoch_end"):
    """An epoch is over, or was left by STOP."""

    epoch: int
    avg_loss: float | None
    avg_reward: float | None
    epoch_time_secs: float


class Complete(WireStruct, frozen=True, tag="complete"):
    """Training ended as planned or on request."""

    total_steps: int
    total_time_secs: float
    status: RunStatus | None = None
    reason: str | None = None


class Failed(WireStruct, frozen=True, tag="failed"):
    """The run ends with an error: one line that says what to do."""

    error: str
    exit_code: int
    step: int | None = None
    hint: str | None = None


class Paused(WireStruct, frozen=True, tag="paused"):
    """The loop really stands still, after `step` steps."""

    step: int


class Resumed(WireStruct, frozen=True, tag="resumed"):
    """The loop goes on."""

    step: int


class Ack(WireStruct, frozen=True, tag="ack"):
    """Answer at once to input line number `line` (from 1): understood, or why not."""

    line: int
    command: str
    ok: bool
    message: str | None = None
    step: int | None = None
    """First step for which the command will hold."""


class Applied(WireStruct, frozen=True, tag="applied"):
    """What input line `line` asked for has happened, or has failed."""

    line: int
    command: str
    ok: bool
    message: str | None = None
    step: int | None = None
    path: str | None = None


class Prompt(WireStruct, frozen=True, tag="prompt"):
    """A script asks the person a question; answered by `PROMPT:id:value`."""

    id: str
    message: str
    choices: list[Choice]
    multi_select: bool
    default: list[int] = []


class Dropped(WireStruct, frozen=True, tag="dropped"):
    """The reader was too slow: so many events were left out. The database has what they held."""

    generations: int = 0
    logs: int = 0
    phases: int = 0
    steps: int = 0


Event: TypeAlias = (
    Hello
    | Status
    | Log
    | DatabasePath
    | ResumeState
    | Init
    | EpochStart
    | PhaseChange
    | Step
    | Generation
    | Checkpoint
    | Eval
    | EpochEnd
    | Complete
    | Failed
    | Paused
    | Resumed
    | Ack
    | Applied
    | Prompt
    | Dropped
)
