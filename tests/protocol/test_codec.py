"""Events to bytes and back; what is no event never raises."""

import json
import math

import pytest

from grpo_protocol import Malformed, decode_event, encode_event
from grpo_protocol.messages import EpochEnd, Generation, Log, Step


def test_one_line_of_json_in_camel_case_with_its_type() -> None:
    line = encode_event(Step(step=3, loss=0.5, total_tokens=12, mean_reward=0.25))
    assert line == b'{"type":"step","step":3,"loss":0.5,"totalTokens":12,"meanReward":0.25}\n'
    assert decode_event(line) == Step(step=3, loss=0.5, total_tokens=12, mean_reward=0.25)


def test_newlines_in_texts_do_not_end_the_line() -> None:
    event = Log("info", "one\ntwo\r\n\u2028three")
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert decode_event(line) == event


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_W19_R05_what_is_not_finite_becomes_null_and_comes_back_as_unknown(value: float) -> None:
    step = Step(step=1, loss=value, total_tokens=1, mean_reward=value, metrics={"kl": value})
    line = encode_event(step)
    assert json.loads(line)["loss"] is None
    back = decode_event(line)
    assert isinstance(back, Step)
    assert (back.loss, back.mean_reward, back.metrics) == (None, None, {"kl": None})
    end = decode_event(encode_event(EpochEnd(1, value, value, 2.0)))
    assert end == EpochEnd(1, None, None, 2.0)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"step","step":1,"loss":NaN,"totalTokens":1}',
        b'{"type":"step","step":1,"loss":Infinity,"totalTokens":1}',
        b'{"type":"step","step":1,"loss":1e999,"totalTokens":1}',
        b'{"type":"step","step":1,"loss":"nan","totalTokens":1}',
        b'{"type":"step","step":1}',
        b'{"type":"step","step":1.5,"loss":1,"totalTokens":1}',
        b'{"type":"no_such_type","step":1}',
        b'{"step":1}',
        b'{"type":5}',
        b"[]",
        b"{}",
        b"null",
        b"",
        b"   ",
        b"plain text",
        b'{"type":"paused","step":1}{"type":"paused","step":2}',
        b'{"type":"log","level":"loud","message":"x"}',
        b"\xff\xfe plain",
        b'{"type":"log","level":"info","message":"\x80"}',
        b"\x00\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"type":"log","level":"info","message":"x","extra":' + b"[" * 100_000,
        b"9" * 10_000,
        b'{"type":"paused","step":' + b"9" * 10_000 + b"}",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_R05_what_is_no_event_is_a_value_with_its_text(line: bytes) -> None:
    found = decode_event(line)
    assert isinstance(found, Malformed)
    assert found.text == line.decode("utf-8", "replace").rstrip("\r\n")
    assert found.reason


def test_unknown_fields_of_a_newer_trainer_are_ignored() -> None:
    line = b'{"type":"paused","step":4,"mood":"calm","more":{"a":[1]}}'
    event = decode_event(line)
    assert type(event).__name__ == "Paused"
    assert encode_event(event) == b'{"type":"paused","step":4}\n'  # type: ignore[arg-type]


def test_an_integer_where_a_number_is_meant_is_one() -> None:
    event = decode_event(b'{"type":"step","step":1,"loss":2,"totalTokens":1}')
    assert isinstance(event, Step)
    assert event.loss == 2.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ude00", "🙂".replace("🙂", "\U0001f600")),
        ("\x00abc", "\x00abc"),
        ("\x1b[2J", "\x1b[2J"),
    ],
)
def test_R07_text_without_a_utf8_form_is_replaced_not_lost(text: str, expected: str) -> None:
    event = Generation(
        index=0,
        prompt=text,
        completion=text,
        reward=1.0,
        tokens=2,
        reward_details={text: 1.0},
        token_ids=[1, 2],
    )
    back = decode_event(encode_event(event))
    assert isinstance(back, Generation)
    assert (back.prompt, back.completion) == (expected, expected)
    assert back.reward_details == {expected: 1.0}
    assert back.token_ids == [1, 2]


def test_R07_a_lone_surrogate_beside_a_nan() -> None:
    event = Generation(0, "\ud83d", "x", math.nan, 1)
    back = decode_event(encode_event(event))
    assert isinstance(back, Generation)
    assert back.reward is None
