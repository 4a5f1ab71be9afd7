"""Rows out of dataset files: containers, encodings and JSON syntax.

What a row means is the business of `dataset`. A format is one entry of `_READERS`.
"""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from grpo_protocol.config_input import ConfigError
from grpo_trainer.json_values import refuse_constant


class RawRow(NamedTuple):
    """A parsed row, and where it stands, as in `train.jsonl line 57`."""

    source: str
    value: Any


def read_rows(path: Path) -> Iterator[RawRow]:
    """Yields the rows of a dataset file in order. Raises `ConfigError` naming file and line."""
    reader = _READERS.get(_format_of(path))
    if reader is None:
        wanted = ", ".join(f"{suffix}, {suffix}.gz" for suffix in _READERS)
        raise ConfigError(
            f"dataset {path}: a {path.suffix or 'nameless'} file cannot be read; "
            f"convert it to one of {wanted}"
        )
    return reader(path, _decode(path, _read_bytes(path)))


def _format_of(path: Path) -> str:
    """`.jsonl` for `train.jsonl` and for `train.jsonl.gz`. Refuses what is no file."""
    if path.is_dir():
        raise ConfigError(f"dataset {path}: is a folder; name the .jsonl or .json file in it")
    if not path.exists():
        raise ConfigError(f"dataset {path}: no such file; check the path")
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix.lower() == ".gz" else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(
            f"dataset {path}: not a whole gzip file ({error}); compress it again"
        ) from error
    except OSError as error:
        raise ConfigError(f"dataset {path}: cannot be read: {error.strerror}") from error


def _decode(path: Path, data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"dataset {path}: is UTF-16 text; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"dataset {path} line {line}: byte 0x{data[error.start]:02x} is not UTF-8; "
            "save the file as UTF-8"
        ) from error


def _read_jsonl(path: Path, text: str) -> Iterator[RawRow]:
    # Only at newlines: `str.splitlines` also cuts at U+2028, which JSON strings may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            source = f"{path} line {number}"
            yield RawRow(source, _parse(source, line))


def _read_json(path: Path, text: str) -> Iterator[RawRow]:
    if not text.strip():
        return
    hint = "; a file with one row on each line must be named .jsonl"
    rows = _parse(str(path), text, hint)
    if not isinstance(rows, list):
        raise ConfigError(
            f"dataset {path}: holds one {type(rows).__name__}, wanted a list of rows{hint}"
        )
    for number, row in enumerate(rows, start=1):
        yield RawRow(f"{path} row {number}", row)


_READERS: dict[str, Callable[[Path, str], Iterator[RawRow]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
}


def _parse(source: str, text: str, hint: str = "") -> Any:
    """Strict JSON: nothing is taken that would change its value without a word."""
    try:
        value = json.loads(
            text,
            object_pairs_hook=_without_duplicates,
            parse_constant=refuse_constant,
            parse_float=_finite,
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} " if "\n" in text.strip() else ""
        raise ConfigError(
            f"dataset {source}: not valid JSON: {error.msg} at {place}column {error.colno}{hint}"
        ) from error
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"dataset {source}: holds half a surrogate pair (\\ud800…\\udfff), which no text can be"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"dataset {source}: not valid JSON: {error}") from error
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key `{twice}` occurs twice in one object; keep one of them")
    return row


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"number {text} is too large")
    return number
