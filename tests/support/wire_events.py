"""Events for tests of the channel, and what arrives at its other end."""

import os

from grpo_protocol.codec import Malformed, decode_event
from grpo_protocol.messages import Event, Generation, Step


def step(number: int, loss: float | None = 0.5) -> Step:
    return Step(step=number, loss=loss, total_tokens=8)


def generation(size: int, index: int = 0) -> Generation:
    return Generation(index=index, prompt="p", completion="c" * size, reward=1.0, tokens=1)


def decode_all(output: bytes) -> list[Event]:
    """Every line of `output` as an event; a line that is none fails the test."""
    assert not output or output.endswith(b"\n")
    events = []
    for line in output.splitlines():
        event = decode_event(line)
        assert not isinstance(event, Malformed), event
        events.append(event)
    return events


def read_events(fd: int) -> list[Event]:
    """Everything that arrives until the other end is closed."""
    output = b""
    while chunk := os.read(fd, 1 << 20):
        output += chunk
    return decode_all(output)
