"""The one declaration of what a run can be told: keys, types, bounds, defaults and meaning.

Keys are snake_case here, in TOML and on the command line, and camelCase in the `init` event.
Durations are seconds. A key marked live can be changed while training with `SET key=value`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from grpo_protocol.config_rules import check_together
from grpo_protocol.settings.kinds import Count, Interval, key
from grpo_protocol.settings.optimizer import OptimizerSettings

SampleDisplay = Literal["all", "best_worst", "random"]


class OutputStoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recording of every completion in SQLite."""

    enabled: Annotated[
        bool, key("Output", "Record every step and completion in an SQLite database.")
    ] = True
    local_path: Annotated[
        str | None, key("Output", "Database file; without it outputs.db in the run's folder.")
    ] = None


class GRPOConfig(OptimizerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one GRPO run. Build it with `load_config`, or check it with `validate_config`."""

    # --- output
    output_dir: Annotated[
        str | None, key("Output", "Folder of the run; a new outputs/NAME without it.")
    ] = None
    run_name: Annotated[
        str | None, key("Output", "Name of the run in the database and of its log file.")
    ] = None
    resume_from_checkpoint: Annotated[
        str | None,
        key(
            "Output",
            "Checkpoint to go on from: its folder, or `latest` for the newest in `output_dir`.",
        ),
    ] = None
    save_interval: Annotated[
        Interval, key("Output", "Steps between two checkpoints; 0 for none.", live=True)
    ] = 100
    max_checkpoints: Annotated[
        Interval, key("Output", "`checkpoint-N` folders to keep; 0 for all.")
    ] = 3
    eval_interval: Annotated[
        Interval,
        key("Output", "Steps between evaluations; 0 for the start and the end only.", live=True),
    ] = 100
    log_interval: Annotated[
        Count, key("Output", "Steps between two lines on the console and in the log.", live=True)
    ] = 1
    log_console: Annotated[
        bool, key("Output", "Lines or a progress bar for people, on the console.")
    ] = True
    log_jsonl: Annotated[bool, key("Output", "A log file NAME.jsonl in the run's folder.")] = True
    output_store: Annotated[
        OutputStoreConfig, key("Output", "Record of every step and completion in SQLite.")
    ] = OutputStoreConfig()
    sample_display: Annotated[
        SampleDisplay,
        key("Output", "Completions sent to the dashboard; all are recorded anyway.", live=True),
    ] = "all"
    tui_mode: Annotated[
        bool | None,
        key(
            "Output", "JSONL events on stdout, commands on stdin; from GRPO_TUI_MODE when not set."
        ),
    ] = None
    on_dashboard_exit: Annotated[
        Literal["continue", "stop"],
        key("Output", "When the dashboard is gone: finish the run, or save and stop."),
    ] = "continue"

    def __post_init__(self) -> None:
        check_together(self)


class ConfigKey(msgspec.Struct, frozen=True):
    """What is known about one key, for help and for the Config tab."""

    name: str
    """With that of its section, as in `output_store.enabled`."""
    group: str
    description: str
    default: Any
    live: bool
    choices: tuple[str, ...] = ()
    """All values that there are, where these are words."""
    keys: tuple["ConfigKey", ...] = ()
    """Those of a section, which is set by its keys and not as a whole."""


def config_keys() -> list[ConfigKey]:
    """Every key in the order of its declaration."""
    return list(_keys_of(GRPOConfig))


def _keys_of(settings: type[msgspec.Struct], section: str = "") -> Iterator[ConfigKey]:
    hints = get_type_hints(settings, include_extras=True)
    for field in msgspec.structs.fields(settings):
        yield _describe(field, hints[field.name], section)


def _describe(field: msgspec.structs.FieldInfo, hint: Any, section: str) -> ConfigKey:
    meta = next(
        item for item in reversed(hint.__metadata__) if isinstance(item, Meta) and item.extra
    )
    assert meta.extra is not None
    default = field.default
    if default is msgspec.NODEFAULT:
        default = field.default_factory()
    return ConfigKey(
        name=section + field.name,
        group=meta.extra["group"],
        description=meta.description or "",
        default=default,
        live=meta.extra["live"],
        choices=_choices(hint),
        keys=tuple(_keys_of(type(default), f"{field.name}."))
        if isinstance(default, msgspec.Struct)
        else (),
    )


def _choices(hint: Any) -> tuple[str, ...]:
    """The words that `hint` allows, be they optional or annotated."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next(filter(None, map(_choices, get_args(hint))), ())


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
