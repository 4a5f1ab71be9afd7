"""What a completion says: its answer text, its thinking and its tool calls.

Every scan moves forward only and ends at the first tag that is never closed, so the time is linear
in the length whatever a model writes. No patterns are matched.
"""

import json
from dataclasses import dataclass
from typing import Any

from grpo_protocol.messages import ToolCall
from grpo_trainer.json_values import refuse_constant

TOOL_OPEN, TOOL_CLOSE = "<tool_call>", "</tool_call>"
THINK_TAGS = ("think", "longcat_think")


@dataclass(frozen=True)
class ParsedCompletion:
    """A raw completion in its parts."""

    text: str
    """Without thinking and tool calls."""
    thinking: str | None
    tool_calls: list[ToolCall]


@dataclass(frozen=True)
class _Split:
    """`text` cut at its blocks: what is inside of each, and what is left in between."""

    outside: list[str]
    inside: list[str]


def parse_completion(raw: str) -> ParsedCompletion:
    """The parts of `raw`. Tool calls are taken out first, also from inside the thinking."""
    calls = _split(raw, TOOL_OPEN, TOOL_CLOSE)
    text, thoughts = "".join(calls.outside), []
    for tag in THINK_TAGS:
        text, found = _take_thinking(text, f"<{tag}>", f"</{tag}>")
        thoughts += found
    thinking = "\n\n".join(part.strip() for part in thoughts if part.strip())
    return ParsedCompletion(
        text=text.strip(),
        thinking=thinking or None,
        tool_calls=[call for block in calls.inside if (call := _to_call(block)) is not None],
    )


def _find(text: str, part: str, start: int = 0) -> int:
    """Every scan over model text goes through here."""
    return text.find(part, start)


def _split(text: str, opening: str, closing: str) -> _Split:
    outside, inside, position = [], [], 0
    while (start := _find(text, opening, position)) >= 0:
        end = _find(text, closing, start + len(opening))
        if end < 0:
            break
        outside.append(text[position:start])
        inside.append(text[start + len(opening) : end])
        position = end + len(closing)
    outside.append(text[position:])
    return _Split(outside, inside)


def _take_thinking(text: str, opening: str, closing: str) -> tuple[str, list[str]]:
    """The text without its think blocks, and their contents.

    A chat template may have written the first opening tag itself: then a closing tag comes first,
    and counts if its line ends there.
    """
    thoughts = []
    end = _find(text, closing)
    start = _find(text, opening)
    if end >= 0 and not 0 <= start < end:
        rest = text[end + len(closing) :]
        if not rest or rest[0] in "\r\n":
            thoughts.append(text[:end])
            text = rest
    split = _split(text, opening, closing)
    return "".join(split.outside), thoughts + split.inside


def _to_call(block: str) -> ToolCall | None:
    """The call in a block; None for a form that is none of ours."""
    content = block.strip()
    if content.startswith("{"):
        return _json_call(content)
    if content.startswith("<function="):
        return _function_call(content)
    if _find(content, "<name>") >= 0 or _find(content, "<arguments>") >= 0:
        return _xml_call(content)
    return None


def _json_call(content: str) -> ToolCall:
    """`{"name": …, "arguments": …}`"""
    try:
        call = _loads(content)
    except ValueError as error:
        return ToolCall("invalid_json", raw_content=content, error=str(error))
    name = call.get("name")
    if not isinstance(name, str) or not name.strip():
        return _nameless(content)
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = _loads(arguments)
        except ValueError as error:
            return ToolCall("parse_error", name.strip(), arguments, content, str(error))
    return _ok(name, {} if arguments is None else arguments, content)


def _xml_call(content: str) -> ToolCall:
    """`<name>…</name><arguments>{…}</arguments>`"""
    name = _between(content, "<name>", "</name>") or ""
    if not name.strip():
        return _nameless(content)
    arguments = _between(content, "<arguments>", "</arguments>") or ""
    if not arguments.strip():
        return _ok(name, {}, content)
    try:
        return _ok(name, _loads(arguments), content)
    except ValueError as error:
        return ToolCall("invalid_json", name.strip(), raw_content=content, error=str(error))


def _function_call(content: str) -> ToolCall:
    """`<function=NAME><parameter=KEY>…</parameter></function>`"""
    end = _find(content, ">")
    name = content[len("<function=") : end] if end >= 0 else ""
    if not name.strip():
        return _nameless(content)
    arguments = {}
    for parameter in _split(content[end + 1 :], "<parameter=", "</parameter>").inside:
        key, separator, value = parameter.partition(">")
        if separator:
            arguments[key.strip()] = _parameter(value)
    return _ok(name, arguments, content)


def _parameter(value: str) -> Any:
    """Text, unless it is a JSON list or object; the line ends next to the tags are layout."""
    value = value.removeprefix("\n").removesuffix("\n")
    if value.startswith(("[", "{")):
        try:
            return _loads(value)
        except ValueError:
            return value
    return value


def _between(text: str, opening: str, closing: str) -> str | None:
    start = _find(text, opening)
    end = _find(text, closing, start + len(opening)) if start >= 0 else -1
    return text[start + len(opening) : end] if end >= 0 else None


def _ok(name: str, arguments: Any, content: str) -> ToolCall:
    return ToolCall("ok", name.strip(), json.dumps(arguments, ensure_ascii=False), content)


def _nameless(content: str) -> ToolCall:
    return ToolCall("missing_name", raw_content=content, error="the call has no name")


def _loads(text: str) -> Any:
    """JSON, with raw line ends inside strings allowed. Raises `ValueError`."""
    try:
        return json.loads(text, strict=False, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
