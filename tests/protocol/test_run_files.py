"""The lock file of a run: both sides read what one of them wrote."""

import json

import pytest

from grpo_protocol.run_files import LockNote, decode_lock_note, encode_lock_note


def test_a_note_comes_back_and_is_plain_json() -> None:
    note = LockNote(pid=7, started="2026-01-02T03:04:05+00:00")
    content = encode_lock_note(note)
    assert json.loads(content) == {"pid": 7, "started": "2026-01-02T03:04:05+00:00"}
    assert decode_lock_note(content) == note


@pytest.mark.parametrize(
    "content", [b"", b'{"pid":', b"\xff", b"[1]", b'{"pid":"7"}', b"[" * 100_000]
)
def test_what_is_no_note_is_none(content: bytes) -> None:
    assert decode_lock_note(content) is None
