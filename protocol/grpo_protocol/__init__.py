"""What the trainer and the dashboard agree on: events, commands, framing, config, database."""

from grpo_protocol.codec import Malformed, decode_event, encode_event
from grpo_protocol.commands import format_command, parse_command
from grpo_protocol.config import GRPOConfig
from grpo_protocol.config_input import ConfigError, load_config, validate_config
from grpo_protocol.framing import MAX_RECORD_BYTES, LineSplitter, Oversized
from grpo_protocol.messages import PROTOCOL_VERSION, Event

__all__ = [
    "MAX_RECORD_BYTES",
    "PROTOCOL_VERSION",
    "ConfigError",
    "Event",
    "GRPOConfig",
    "LineSplitter",
    "Malformed",
    "Oversized",
    "decode_event",
    "encode_event",
    "format_command",
    "load_config",
    "parse_command",
    "validate_config",
]
