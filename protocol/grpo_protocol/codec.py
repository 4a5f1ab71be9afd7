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
    """One line of JSON including its newline. Raises nothing for any event."""
    return encode_json(event) + b"\n"


def encode_json(value: Any) -> bytes:
    """`value` as JSON. NaN and infinity become null, lone surrogates U+FFFD.

    Models can write lone surrogates, which have no UTF-8 form.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_all_valid(msgspec.to_builtins(value)))


def valid_unicode(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decode_event(line: bytes) -> Event | Malformed:
    """The event in `line`, or `Malformed` for an unknown type, a wrong field or no JSON at all."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Malformed(line.decode("utf-8", errors="replace").rstrip("\r\n"), str(error))


def _all_valid(value: Any) -> Any:
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, list):
        return [_all_valid(item) for item in value]
    if isinstance(value, dict):
        return {_all_valid(key): _all_valid(item) for key, item in value.items()}
    return value
