"""The events as a whole, and the page that lists them."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from grpo_protocol import Malformed, decode_event, encode_event, parse_command
from grpo_protocol.commands import BadCommand, Command
from grpo_protocol.messages import Event

README = Path(__file__).parents[2] / "protocol" / "README.md"
STREAM = Path(__file__).parents[1] / "data" / "mlx_node_resumed.jsonl"


def examples(language: str) -> list[str]:
    """Lines of the page's fenced blocks of one language."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def event_classes() -> list[type[Any]]:
    return list(get_args(Event))


@pytest.mark.parametrize("line", examples("jsonl"), ids=lambda line: line[:40])
def test_every_example_event_of_the_page_decodes_whole(line: str) -> None:
    event = decode_event(line.encode())
    assert not isinstance(event, Malformed), event
    told = msgspec.json.decode(line.encode())
    assert msgspec.json.decode(encode_event(event)) == told, "a field that the event does not have"


@pytest.mark.parametrize("line", examples("text"))
def test_every_example_command_of_the_page_is_one(line: str) -> None:
    assert not isinstance(parse_command(line), BadCommand)


def test_the_page_shows_every_event_and_every_command() -> None:
    shown = {type(decode_event(line.encode())) for line in examples("jsonl")}
    assert shown == set(event_classes())
    commands = {type(parse_command(line)) for line in examples("text")}
    assert commands == set(get_args(Command))


def test_the_page_explains_every_field() -> None:
    text = README.read_text()
    for cls in event_classes():
        assert f"`{cls.__struct_config__.tag}`" in text
        for field in msgspec.structs.fields(cls):
            assert f"`{field.encode_name}`" in text, (cls.__name__, field.encode_name)


@pytest.mark.parametrize("cls", event_classes(), ids=lambda cls: cls.__name__)
def test_events_are_frozen_tagged_in_snake_case_and_named_in_camel_case(cls: type[Any]) -> None:
    config = cls.__struct_config__
    assert config.frozen
    assert isinstance(config.tag, str)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", config.tag)
    for field in msgspec.structs.fields(cls):
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]*)*", field.encode_name)


def test_a_recorded_stream_of_the_reference_plays() -> None:
    lines = STREAM.read_bytes().split(b"\n")
    objects = [line for line in lines if line.startswith(b"{")]
    assert objects
    assert not [line for line in objects if isinstance(decode_event(line), Malformed)]
