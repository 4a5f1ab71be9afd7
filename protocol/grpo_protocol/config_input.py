"""From what people write (TOML, `key=value`) to a checked `GRPOConfig`, or one clear line."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from grpo_protocol.config import GRPOConfig, OutputStoreConfig, config_keys

_SECTIONS = {"": GRPOConfig, "output_store": OutputStoreConfig}
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}
_NONE = {"none", "null"}
_VERBATIM = {"stop"}
"""Lists of texts in which spaces, commas and brackets count."""
_KNOWN_AS = {
    "beta": "kl_coef",
    "epsilon": "clip_epsilon",
    "epsilon_high": "clip_epsilon_high",
    "num_generations": "group_size",
    "per_device_train_batch_size": "batch_size",
    "num_train_epochs": "num_epochs",
    "max_new_tokens": "max_completion_length",
    "max_grad_norm": "gradient_clip_norm",
    "lr_scheduler_type": "lr_schedule",
    "logging_steps": "log_interval",
    "save_steps": "save_interval",
    "eval_steps": "eval_interval",
    "lr": "learning_rate",
    "optim": "optimizer_type",
    "r": "lora_rank",
    "lora_r": "lora_rank",
    "lora_target_modules": "lora_keys",
    "target_modules": "lora_keys",
    "use_dora": "fine_tune_type",
}
"""What people who come from TRL may type, and the key they mean."""


class ConfigError(ValueError):
    """A setting that cannot be; the message is one line with key, value and remedy."""


def load_config(
    values: Mapping[str, Any] | None = None, overrides: Mapping[str, str] | None = None
) -> GRPOConfig:
    """The config of typed `values` (as from TOML) under textual `overrides` (as from a shell).

    A dotted override such as `output_store.enabled` reaches into a section. Raises `ConfigError`.
    """
    merged = dict(values or {})
    for key, text in (overrides or {}).items():
        section, _, name = key.rpartition(".")
        if section:
            merged[section] = {**_table(section, merged), name: _from_text(key, text)}
        else:
            merged[key] = _from_text(key, text)
    return _convert(merged)


def validate_config(config: GRPOConfig) -> GRPOConfig:
    """`config` itself, if every value keeps its bounds; building the struct checks none of them."""
    _convert(msgspec.to_builtins(config))
    return config


def with_setting(config: GRPOConfig, key: str, text: str) -> GRPOConfig:
    """A copy of `config` with `key` set from text and every check made. Raises `ConfigError`."""
    values = msgspec.to_builtins(config)
    values[key] = _from_text(key, text)
    return _convert(values)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a config file. Raises `ConfigError` naming the file."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"config file {path}: {error.strerror}; check the path") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"config file {path}: not valid TOML: {error}") from error


def parse_assignments(words: Sequence[str]) -> dict[str, str]:
    """`key=value` words of a command line as a mapping. Raises `ConfigError`."""
    pairs = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise ConfigError(f"argument {word!r}: expected key=value, for example max_steps=8")
        name = key.strip().replace("-", "_")
        pairs[name] = value if name in _VERBATIM else value.strip()
    return pairs


def _table(section: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `values` has for `section` so far; a section that is none is left to `_from_text`."""
    table = values.get(section, {})
    if isinstance(table, Mapping):
        return table
    if section in _SECTIONS:
        raise ConfigError(f"{section}={table!r}: expected a table, written [{section}]")
    return {}


def _hints(section: str) -> dict[str, Any]:
    return get_type_hints(_SECTIONS[section]) if section in _SECTIONS else {}


def _from_text(key: str, text: str) -> Any:
    """`text` in the type of `key`; left as it is when it does not fit, for a better message."""
    section, _, name = key.rpartition(".")
    hint = _hints(section).get(name)
    if hint is None:
        raise ConfigError(_unknown(key, text))
    kinds = set(get_args(hint)) | {hint}
    if type(None) in kinds and text.lower() in _NONE:
        return None
    if bool in kinds and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if any(getattr(kind, "__origin__", None) is list for kind in kinds):
        if (found := _json_list(text)) is not None:
            return found
        return [text] if key in _VERBATIM else _words(text, numbers=list[float] in kinds)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def _json_list(text: str) -> list[Any] | None:
    try:
        return msgspec.json.decode(text, type=list[Any])
    except msgspec.MsgspecError:
        return None


def _words(text: str, *, numbers: bool) -> list[Any]:
    """A list as a shell makes it easy to write: `a,b`, with or without brackets."""
    words = [word.strip() for word in text.strip("[]").split(",") if word.strip()]
    if not numbers:
        return [word.strip("\"'") for word in words]
    try:
        return [float(word) for word in words]
    except ValueError:
        return words


def _convert(values: dict[str, Any]) -> GRPOConfig:
    try:
        return msgspec.convert(values, GRPOConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), values)) from error


def _explain(message: str, values: dict[str, Any]) -> str:
    """msgspec names the place and the rule; people also need the value and what to do."""
    if unknown := re.search(r"unknown field `([^`]*)`(?: - at `\$\.?([\w.]*)`)?", message):
        key = ".".join(part for part in (unknown[2], unknown[1]) if part)
        return _unknown(key, _lookup(values, key))
    rule, separator, place = message.partition(" - at `$.")
    if not separator:
        return message
    key = re.split(r"[`\[]", place)[0]
    choices = _choices(key)
    rule = rule[0].lower() + rule[1:].replace("`", "")
    for python, plain in (("int", "a whole number"), ("float", "a number"), ("null", "none")):
        rule = re.sub(rf"\b{python}\b", plain, rule).replace(" | ", " or ")
    rule = f"expected one of {choices}" if choices else rule.partition(", got")[0]
    return f"{key}={_lookup(values, key)!r}: {rule}"


def _unknown(key: str, value: Any) -> str:
    names = [*_hints(""), *(f"output_store.{name}" for name in _hints("output_store"))]
    close = [_KNOWN_AS[key]] if key in _KNOWN_AS else get_close_matches(key, names, n=1)
    remedy = f"did you mean {close[0]}?" if close else "`grpo-trainer train --help` lists all keys"
    return f"{key}={value!r}: unknown option; {remedy}"


def _choices(key: str) -> str:
    return next((", ".join(item.choices) for item in config_keys() if item.name == key), "")


def _lookup(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
