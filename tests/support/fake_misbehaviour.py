"""What a trainer may do wrong to its pipes, for the fake trainer."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from grpo_protocol.codec import encode_event
from grpo_protocol.messages import Generation, Log

MISBEHAVIOURS = (
    "long-line",
    "over-long-line",
    "invalid-utf8",
    "split-utf8",
    "unknown-json",
    "stray-print",
    "null-loss",
    "progress-bar",
    "close-stderr",
    "close-stdout",
    "hold-pipes",
    "ignore-stop",
    "ignore-term",
    "stop-on-term",
    "deaf",
)


def misbehave(asked: Sequence[str], write: Callable[[bytes], None]) -> bool:
    """Does what is asked of `MISBEHAVIOURS`; True when stdout is closed afterwards."""
    if "long-line" in asked:
        write(encode_event(Generation(0, "p", "x" * 5_000_000, 1.0, 5, step=0)))
    if "over-long-line" in asked:
        write(b"y" * 9_000_000 + b"\n")
    if "invalid-utf8" in asked:
        write(b"\xff\xfe plain\n")
        write(b'{"type":"log","level":"info","message":"bad \x80 byte"}\n')
    if "split-utf8" in asked:
        line = encode_event(Log("info", "joined ✓ again"))
        cut = line.index("✓".encode()) + 1
        write(line[:cut])
        time.sleep(0.1)
        write(line[cut:])
    if "unknown-json" in asked:
        write(b'{"type":"future_event","x":1}\n[]\n{}\n{"type":"step","loss":NaN}\n\n')
    if "stray-print" in asked:
        write(b"hello from a reward function\n")
    if "progress-bar" in asked:
        os.write(2, b"\r 10%|\x1b[32m#\x1b[0m  |\r100%|\x1b[32m###\x1b[0m|\n")
    if "close-stderr" in asked:
        os.close(2)
    if "hold-pipes" in asked:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"])
    if "close-stdout" in asked:
        os.close(1)
    return "close-stdout" in asked
