"""Parsing of completions: thinking, tool calls of each form, and linear cost on hostile text."""

import json

import pytest

from grpo_protocol.messages import ToolCall
from grpo_trainer import completion_text
from grpo_trainer.completion_text import parse_completion


def only_call(block: str) -> ToolCall:
    parsed = parse_completion(f"before <tool_call>{block}</tool_call> after")
    assert parsed.text == "before  after"
    (call,) = parsed.tool_calls
    assert call.raw_content == block.strip()
    return call


def test_plain_text_is_the_answer() -> None:
    parsed = parse_completion("  42\n")
    assert (parsed.text, parsed.thinking, parsed.tool_calls) == ("42", None, [])


@pytest.mark.parametrize(
    ("raw", "text", "thinking"),
    [
        ("<think>7*6</think>42", "42", "7*6"),
        ("<think> a </think>x<think>\nb\n</think>y", "xy", "a\n\nb"),
        ("<longcat_think>a</longcat_think>x", "x", "a"),
        ("<think>a</think><longcat_think>b</longcat_think>x", "x", "a\n\nb"),
        ("<think>\n\n</think>\n\n42", "42", None),
        ("7*6\n</think>\n42", "42", "7*6"),
        ("7*6</think>", "", "7*6"),
        ("7*6</think>\r\n42", "42", "7*6"),
        ("a</think>\nx<think>b</think>y", "xy", "a\n\nb"),
        ("write </think> to close", "write </think> to close", None),
        ("<think>cut off", "<think>cut off", None),
        ("<think>a</think>x</think>\ny", "x</think>\ny", "a"),
    ],
)
def test_thinking_is_taken_out_of_the_text(raw: str, text: str, thinking: str | None) -> None:
    parsed = parse_completion(raw)
    assert (parsed.text, parsed.thinking) == (text, thinking)


@pytest.mark.parametrize(
    ("block", "status", "name", "arguments"),
    [
        ('{"name": "f", "arguments": {"x": "é"}}', "ok", "f", '{"x": "é"}'),
        ('\n{"name": " f ", "arguments": {"x": 1}}\n', "ok", "f", '{"x": 1}'),
        ('{"name": "f"}', "ok", "f", "{}"),
        ('{"name": "f", "arguments": null}', "ok", "f", "{}"),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', "ok", "f", '{"x": 1}'),
        ('{"name": "f", "arguments": {"x": "a\nb"}}', "ok", "f", '{"x": "a\\nb"}'),
        ('{"name": "f", "arguments": "x = 1"}', "parse_error", "f", "x = 1"),
        ('{"name": "f", "arguments": {"x": 1}', "invalid_json", "", ""),
        ('{"name": "f"} and more', "invalid_json", "", ""),
        ('{"name": "f", "arguments": {"x": NaN}}', "invalid_json", "", ""),
        ('{"arguments": {}}', "missing_name", "", ""),
        ('{"name": " "}', "missing_name", "", ""),
        ('{"name": 3}', "missing_name", "", ""),
        ('<name>f</name><arguments>{"x": 1}</arguments>', "ok", "f", '{"x": 1}'),
        ("<name>\nf\n</name>", "ok", "f", "{}"),
        ("<name>f</name><arguments>x</arguments>", "invalid_json", "f", ""),
        ("<name></name><arguments>{}</arguments>", "missing_name", "", ""),
        ("<arguments>{}</arguments>", "missing_name", "", ""),
        ("<function=f></function>", "ok", "f", "{}"),
        (
            "<function=f><parameter=x>\n1\n</parameter><parameter=y>[1, 2]</parameter></function>",
            "ok",
            "f",
            '{"x": "1", "y": [1, 2]}',
        ),
        ("<function=f><parameter=x>{bad</parameter></function>", "ok", "f", '{"x": "{bad"}'),
        ("<function=></function>", "missing_name", "", ""),
    ],
)
def test_tool_calls_of_each_form(block: str, status: str, name: str, arguments: str) -> None:
    call = only_call(block)
    assert (call.status, call.name, call.arguments) == (status, name, arguments)
    assert (call.error is None) == (status == "ok")


def test_a_block_of_unknown_form_is_taken_out_and_is_no_call() -> None:
    parsed = parse_completion("a<tool_call>f(1)</tool_call>b")
    assert (parsed.text, parsed.tool_calls) == ("ab", [])


def test_each_block_has_its_own_form_and_the_order_is_kept() -> None:
    parsed = parse_completion(
        '<tool_call>{"name": "a"}</tool_call><tool_call><name>b</name></tool_call>'
        "<tool_call>{bad</tool_call><tool_call><function=c></function></tool_call>"
    )
    assert [call.name for call in parsed.tool_calls] == ["a", "b", "", "c"]


def test_an_open_block_stays_in_the_text() -> None:
    parsed = parse_completion('answer <tool_call>{"name": "f"')
    assert (parsed.text, parsed.tool_calls) == ('answer <tool_call>{"name": "f"', [])


def test_calls_inside_of_thinking_count_and_leave_it() -> None:
    parsed = parse_completion('<think>a <tool_call>{"name": "f"}</tool_call>b</think>x')
    assert (parsed.text, parsed.thinking) == ("x", "a b")
    assert [call.name for call in parsed.tool_calls] == ["f"]


HOSTILE = [
    "<think>",
    "</think>",
    "</think>\n",
    "<think></think>",
    "<longcat_think><think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_call><tool_call></tool_call>",
    "<tool_call><name></tool_call>",
    "<tool_call>{</tool_call>",
    "<",
    "\n",
]
HOSTILE_BLOCKS = ["<parameter=x", "<parameter=x>", "<name>", "<arguments>", "{", '{"a":', "["]


@pytest.mark.parametrize(
    "raw",
    [
        *(piece * (100_000 // len(piece)) for piece in HOSTILE),
        *(f"<tool_call><function=f>{p * (100_000 // len(p))}</tool_call>" for p in HOSTILE_BLOCKS),
        *(f"<tool_call><name>f{p * (100_000 // len(p))}</tool_call>" for p in HOSTILE_BLOCKS),
        *(f"<tool_call>{p * (100_000 // len(p))}</tool_call>" for p in HOSTILE_BLOCKS),
        "<tool_call>" + '{"a":' * 20_000 + "1" + "}" * 20_000 + "</tool_call>",
    ],
)
def test_hostile_text_is_scanned_a_few_times_only(
    raw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned = 0

    def counting_find(text: str, part: str, start: int = 0) -> int:
        nonlocal scanned
        found = text.find(part, start)
        scanned += (found if found >= 0 else len(text)) - start + len(part)
        return found

    monkeypatch.setattr(completion_text, "_find", counting_find)
    parse_completion(raw)
    assert 0 < scanned <= 20 * len(raw)


def test_arguments_are_json_text_that_can_be_read_back() -> None:
    call = only_call('{"name": "f", "arguments": {"text": "line\nend\t\u2028"}}')
    assert json.loads(call.arguments) == {"text": "line\nend\t\u2028"}
