"""The one declaration of what a run can be told: keys, types, bounds, defaults and meaning.

Keys are snake_case here, in TOML and on the command line, and camelCase in the `init` event.
Durations are seconds. A key marked live can be changed while training with `SET key=value`.
"""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType


def _key(group: str, description: str, *, live: bool = False) -> Meta:
    return Meta(description=description, extra={"group": group, "live": live})


Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Interval = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]

FineTuneType = Literal["lora", "full"]
LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo"]
ScaleRewards = Literal["group", "batch", "none"]
SampleDisplay = Literal["all", "best_worst", "random"]


class OutputStoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recording of every completion in SQLite."""

    enabled: bool = True
    local_path: str | None = None
    """Database file; without it `outputs.db` in the run's folder."""


class GRPOConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one GRPO run. Build it with `load_config`, or check it with `validate_config`."""

    # --- model
    model: Annotated[
        str | None, _key("Model", "Folder of an mlx-lm model, or its Hugging Face hub id.")
    ] = None
    model_name: Annotated[
        str | None, _key("Model", "Name shown and recorded; the last part of `model` without it.")
    ] = None
    fine_tune_type: Annotated[
        FineTuneType, _key("Model", "Train low-rank adapters, or every weight.")
    ] = "lora"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        _key(
            "Model",
            "Precision of rollouts and of frozen weights; auto is float32 on the CPU and the "
            "file's own elsewhere. Trained weights are float32 always.",
        ),
    ] = "auto"
    lora_rank: Annotated[Count, _key("Model", "Rank of the adapters.")] = 8
    lora_scale: Annotated[Positive, _key("Model", "Factor on B·A; mlx-lm's default is 20.")] = 20.0
    lora_dropout: Annotated[
        Fraction, _key("Model", "Dropout inside the adapters while training.")
    ] = 0.0
    lora_layers: Annotated[
        int, _key("Model", "Number of last layers that get adapters; -1 for all.")
    ] = -1

    # --- data and rewards
    data: Annotated[
        str | None, _key("Data", "Dataset: a .jsonl or .json file with a `prompt` in each row.")
    ] = None
    eval_data: Annotated[str | None, _key("Data", "Held-out dataset, decoded greedily.")] = None
    shuffle: Annotated[bool, _key("Data", "A new order for each epoch, derived from the seed.")] = (
        True
    )
    max_prompt_length: Annotated[
        Count | None, _key("Data", "A longer prompt, in tokens, is refused at the start.")
    ] = None
    enable_thinking: Annotated[
        bool | None, _key("Data", "Passed to the chat template when set.")
    ] = None
    reward: Annotated[
        list[str],
        _key("Rewards", "Reward functions: FILE.py for all of them in it, or FILE.py:NAME."),
    ] = msgspec.field(default_factory=list)
    reward_weights: Annotated[
        list[float] | None, _key("Rewards", "One weight for each reward function; 1 without it.")
    ] = None
    reward_timeout: Annotated[
        NotNegative, _key("Rewards", "Seconds that scoring one step may take; 0 for no limit.")
    ] = 60.0

    # --- GRPO
    group_size: Annotated[
        Annotated[int, Meta(ge=2)], _key("GRPO", "Completions for each prompt.")
    ] = 4
    batch_size: Annotated[Count, _key("GRPO", "Prompts in one micro-step.")] = 1
    gradient_accumulation_steps: Annotated[
        Count, _key("GRPO", "Micro-steps whose gradients make one optimizer step.")
    ] = 1
    num_epochs: Annotated[Count, _key("GRPO", "Passes over the dataset.")] = 1
    max_steps: Annotated[
        Count | None, _key("GRPO", "Optimizer steps of the run; overrides `num_epochs`.")
    ] = None
    loss_type: Annotated[
        LossType,
        _key("GRPO", "How token losses become one number."),
    ] = "grpo"
    clip_epsilon: Annotated[Positive, _key("GRPO", "Lower, and by default upper, ratio clip.")] = (
        0.2
    )
    clip_epsilon_high: Annotated[
        Positive | None, _key("GRPO", "Upper ratio clip when it differs from the lower one.")
    ] = None
    scale_rewards: Annotated[
        ScaleRewards,
        _key("GRPO", "Divide advantages by the spread of the group, of the batch, or not."),
    ] = "group"
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)],
        _key("GRPO", "All randomness is derived from it: same command, same run."),
    ] = 0

    # --- generation
    max_completion_length: Annotated[
        Count, _key("Generation", "Tokens after which a completion is cut.")
    ] = 256
    temperature: Annotated[
        Positive,
        _key("Generation", "Divides the logits, in sampling and in the loss alike.", live=True),
    ] = 0.8

    # --- optimizer
    learning_rate: Annotated[
        Positive | None,
        _key("Optimizer", "Constant; without it 1e-5 for adapters, 1e-6 for all.", live=True),
    ] = None
    weight_decay: Annotated[NotNegative, _key("Optimizer", "Decoupled, as in AdamW.")] = 0.01
    adamw_beta1: Annotated[Fraction, _key("Optimizer", "Decay of the first moment.")] = 0.9
    adamw_beta2: Annotated[Fraction, _key("Optimizer", "Decay of the second moment.")] = 0.999
    adamw_eps: Annotated[Positive, _key("Optimizer", "Added to the root of the second.")] = 1e-8
    gradient_clip_norm: Annotated[
        Positive | None,
        _key("Optimizer", "Largest L2 norm of the whole accumulated gradient.", live=True),
    ] = 1.0
    gradient_clip_value: Annotated[
        Positive | None, _key("Optimizer", "Largest size of one gradient element; off without it.")
    ] = None

    # --- output
    output_dir: Annotated[
        str | None, _key("Output", "Folder of the run; a new outputs/NAME without it.")
    ] = None
    run_name: Annotated[str | None, _key("Output", "Name in the database and of the log file.")] = (
        None
    )
    resume_from_checkpoint: Annotated[
        str | None, _key("Output", "`latest`, or the folder of a checkpoint.")
    ] = None
    save_interval: Annotated[
        Interval, _key("Output", "Steps between two checkpoints; 0 for none.", live=True)
    ] = 100
    max_checkpoints: Annotated[
        Interval, _key("Output", "`checkpoint-N` folders to keep; 0 for all.")
    ] = 3
    eval_interval: Annotated[
        Interval,
        _key("Output", "Steps between evaluations; 0 for the start and the end only.", live=True),
    ] = 100
    log_interval: Annotated[
        Count, _key("Output", "Steps between two lines on the console and in the log.", live=True)
    ] = 1
    log_console: Annotated[bool, _key("Output", "Lines or a progress bar for people.")] = True
    log_jsonl: Annotated[bool, _key("Output", "A log file NAME.jsonl in the run's folder.")] = True
    output_store: Annotated[
        OutputStoreConfig, _key("Output", "SQLite record of steps and completions.")
    ] = OutputStoreConfig()
    sample_display: Annotated[
        SampleDisplay,
        _key("Output", "Completions sent to the dashboard; all are recorded anyway.", live=True),
    ] = "all"
    tui_mode: Annotated[
        bool | None,
        _key("Output", "JSONL events and commands; from GRPO_TUI_MODE when not set."),
    ] = None
    on_dashboard_exit: Annotated[
        Literal["continue", "stop"],
        _key("Output", "When the dashboard is gone: finish the run, or save and stop."),
    ] = "continue"

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(value := getattr(self, name), float) and not math.isfinite(value):
                raise ValueError(f"{name}={value}: must be a finite number")
        if self.lora_layers < -1 or self.lora_layers == 0:
            raise ValueError(f"lora_layers={self.lora_layers}: use -1 for all, or at least 1")
        if self.clip_epsilon >= 1:
            raise ValueError(
                f"clip_epsilon={self.clip_epsilon}: must be below 1, or no ratio is clipped low"
            )
        weights = self.reward_weights
        if weights is not None and self.reward and all(":" in name for name in self.reward):
            expect_weights(weights, len(self.reward))


def expect_weights(weights: list[float], num_rewards: int) -> None:
    """Raises `ValueError` unless there is one weight for each reward function."""
    if len(weights) != num_rewards:
        raise ValueError(
            f"reward_weights={weights}: {num_rewards} reward functions need {num_rewards} weights"
        )


class ConfigKey(msgspec.Struct, frozen=True):
    """What is known about one key, for help and for the Config tab."""

    name: str
    group: str
    description: str
    default: Any
    live: bool


def config_keys() -> list[ConfigKey]:
    """Every key in the order of its declaration."""
    hints = get_type_hints(GRPOConfig, include_extras=True)
    return [_describe(field, hints[field.name]) for field in msgspec.structs.fields(GRPOConfig)]


def _describe(field: msgspec.structs.FieldInfo, hint: Any) -> ConfigKey:
    meta = next(
        item for item in reversed(hint.__metadata__) if isinstance(item, Meta) and item.extra
    )
    assert meta.extra is not None
    default = field.default
    if default is msgspec.NODEFAULT:
        default = field.default_factory()
    return ConfigKey(
        name=field.name,
        group=meta.extra["group"],
        description=meta.description or "",
        default=default,
        live=meta.extra["live"],
    )


def live_keys() -> list[str]:
    """Keys that `SET key=value` may change."""
    return [key.name for key in config_keys() if key.live]


class OutputStoreValues(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The section `output_store` in an `init` event; what it leaves out is at its default."""

    enabled: Any = True
    local_path: Any = None


# Any JSON value; `Any` in the union would keep the section from becoming a struct.
_SectionSent = OutputStoreValues | list[Any] | str | int | float | bool | None | UnsetType


if TYPE_CHECKING:

    class ConfigValues(msgspec.Struct, frozen=True):
        """The settings in an `init` event: those that the trainer sent, the rest `UNSET`.

        A value may be of any type: another trainer's settings are shown, not judged.
        """

        def __init__(self, **values: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:
    ConfigValues = msgspec.defstruct(
        "ConfigValues",
        [
            ("training_type", Any, UNSET),
            *(
                (key.name, _SectionSent if key.name == "output_store" else Any, UNSET)
                for key in config_keys()
            ),
        ],
        frozen=True,
        kw_only=True,
        rename="camel",
    )


def config_values(config: GRPOConfig) -> ConfigValues:
    """`config` as the payload of an `init` event."""
    settings = msgspec.structs.asdict(config)
    store = OutputStoreValues(**msgspec.structs.asdict(config.output_store))
    return ConfigValues(**{**settings, "training_type": "grpo", "output_store": store})
