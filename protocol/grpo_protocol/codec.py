"""Events to bytes and back. A line that is no event becomes a value, never an exception."""

from typing import Any

import msgspec

from grpo_protocol.messages import Event


class Malformed(msgspec.Struct, frozen=True):
    """A line that is not an event: its text with bad bytes replaced, and why it was not taken."""

    text: str
    reason: str


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """One line of JSON including its newline. NaN and infinity become null.

    Model text can hold lone surrogates, which have no UTF-8 form; they become U+FFFD.
    """
    try:
        return _encoder.encode(event) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(_without_surrogates(msgspec.to_builtins(event))) + b"\n"


def decode_event(line: bytes) -> Event | Malformed:
    """The event in `line`, or `Malformed` for an unknown type, a wrong field or no JSON at all."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Malformed(line.decode("utf-8", errors="replace").rstrip("\r\n"), str(error))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
