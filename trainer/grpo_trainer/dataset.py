"""What training runs on: prompts with their columns, checked row by row, and their order.

A row is a mapping with `prompt` (text, or a list of messages with role and content); every other
key is a column, which reaches the reward functions as it is. A column that some rows lack is None
there.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from grpo_protocol.config_input import ConfigError
from grpo_trainer.dataset_files import RawRow, read_rows
from grpo_trainer.rewards.batch import RESERVED_COLUMNS

PROMPT_COLUMN = "prompt"
ANSWER_COLUMNS = ("answer", "solution", "ground_truth")
MESSAGE_KEYS = {"role", "content"}
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a dataset."""

    prompt: str | tuple[Message, ...]
    columns: dict[str, Any]
    source: str
    """Where it comes from, for errors: `train.jsonl line 57`."""

    @property
    def raw_prompt(self) -> str | list[dict[str, str]]:
        """The prompt in the data's own form, for chat templates and for reward functions."""
        if isinstance(self.prompt, str):
            return self.prompt
        return [{"role": message.role, "content": message.content} for message in self.prompt]

    @property
    def question(self) -> str:
        """The prompt as people are shown it: the last user message, or the whole text."""
        if isinstance(self.prompt, str):
            return self.prompt
        asked = [message.content for message in self.prompt if message.role == "user"]
        return asked[-1] if asked else self.prompt[-1].content


def load_dataset(path: str | Path) -> list[Example]:
    """The rows of a .jsonl or .json file, plain or .gz. Raises `ConfigError`."""
    path = Path(path).expanduser()
    return _complete([_to_example(row) for row in read_rows(path)], str(path))


def as_examples(rows: Iterable[Mapping[str, Any] | Example]) -> list[Example]:
    """Rows of a Python program as examples. Raises `ConfigError`."""
    examples = [
        row if isinstance(row, Example) else _to_example(RawRow(f"row {number}", row))
        for number, row in enumerate(rows, start=1)
    ]
    return _complete(examples, "given by the program")


def epoch_order(n: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """The order of `n` rows in an epoch: the same on every machine and Python version."""
    if not shuffle:
        return list(range(n))
    return sorted(range(n), key=lambda row: _digest(f"{seed}:{epoch}:{row}"))


def dataset_hash(examples: Iterable[Example]) -> str:
    """SHA-256 over prompts and columns in order, as hex; any change of either shows."""
    digest = hashlib.sha256()
    for example in examples:
        row = {"prompt": example.raw_prompt, "columns": example.columns}
        digest.update(json.dumps(row, sort_keys=True, default=_type_name).encode() + b"\n")
    return digest.hexdigest()


def expected_answer(example: Example) -> str | None:
    """The gold answer as text, from the first column among the usual names that has one."""
    answers = (example.columns.get(name) for name in ANSWER_COLUMNS)
    answer = next((answer for answer in answers if answer is not None), None)
    if answer is None or isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False, default=str)


def column_names(examples: Sequence[Example]) -> list[str]:
    """The columns that every one of `examples` has."""
    return list(examples[0].columns) if examples else []


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _type_name(value: object) -> str:
    """Stands for what JSON cannot hold; the object's own text may hold an address."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _complete(examples: list[Example], origin: str) -> list[Example]:
    """`examples` with the same columns in each, so that they can be passed on as lists."""
    if not examples:
        raise ConfigError(f"dataset {origin}: holds no rows; each row needs a `{PROMPT_COLUMN}`")
    names = dict.fromkeys(name for example in examples for name in example.columns)
    return [
        replace(example, columns={name: example.columns.get(name) for name in names})
        for example in examples
    ]


def _to_example(row: RawRow) -> Example:
    source, value = row
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"dataset {source}: is {_kind(value)}, wanted an object with `{PROMPT_COLUMN}`"
        )
    if PROMPT_COLUMN not in value:
        raise ConfigError(_no_prompt(source, [str(name) for name in value]))
    columns = {name: item for name, item in value.items() if name != PROMPT_COLUMN}
    for name in columns:
        _check_column_name(source, name)
    return Example(_to_prompt(source, value[PROMPT_COLUMN]), columns, source)


def _no_prompt(source: str, names: list[str]) -> str:
    close = get_close_matches(PROMPT_COLUMN, names, n=1)
    remedy = f"; did you mean `{PROMPT_COLUMN}` by `{close[0]}`?" if close else ""
    return (
        f"dataset {source}: no `{PROMPT_COLUMN}`; keys found: {', '.join(names) or 'none'}; "
        f"keys wanted: {PROMPT_COLUMN} (text, or messages with role and content){remedy}"
    )


def _check_column_name(source: str, name: object) -> None:
    if not isinstance(name, str):
        raise ConfigError(f"dataset {source}: column {name!r} must have a text name")
    if name in RESERVED_COLUMNS:
        raise ConfigError(
            f"dataset {source}: column `{name}` has a name that reward functions get from the "
            "trainer; rename it"
        )


def _to_prompt(source: str, value: object) -> str | tuple[Message, ...]:
    if isinstance(value, str):
        if not value.strip():
            raise ConfigError(f"dataset {source}: `{PROMPT_COLUMN}` is blank")
        return value
    if isinstance(value, list | tuple):
        if not value:
            raise ConfigError(f"dataset {source}: `{PROMPT_COLUMN}` holds no messages")
        numbered = enumerate(value, start=1)
        return tuple(_to_message(f"{source} message {number}", item) for number, item in numbered)
    raise ConfigError(
        f"dataset {source}: `{PROMPT_COLUMN}` is {_kind(value)}, wanted text, or a list of "
        "messages with role and content"
    )


def _to_message(source: str, value: object) -> Message:
    if isinstance(value, Message):
        value = {"role": value.role, "content": value.content}
    if not isinstance(value, Mapping):
        raise ConfigError(f"dataset {source}: is {_kind(value)}, wanted role and content")
    # Table libraries fill the keys that other messages have with nulls.
    names = {name for name, item in value.items() if item is not None or name in MESSAGE_KEYS}
    if names != MESSAGE_KEYS:
        found = ", ".join(sorted(map(str, names))) or "none"
        raise ConfigError(f"dataset {source}: keys found: {found}; keys wanted: role, content")
    role, content = value["role"], value["content"]
    if role not in ROLES:
        raise ConfigError(
            f"dataset {source}: role {role!r} is unknown; use one of {', '.join(ROLES)}"
        )
    if not isinstance(content, str) or not content.strip():
        shown = "blank" if isinstance(content, str) else _kind(content)
        raise ConfigError(f"dataset {source}: `content` is {shown}, wanted text")
    return Message(role, content)


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
