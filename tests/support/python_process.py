"""Runs Python code in a process of its own, for what would disturb the one that runs the tests."""

import subprocess
import sys

SECONDS = 60
"""Far more than any of these programs takes; a hang fails the test instead of blocking it."""


def run_python(code: str, *args: str) -> "subprocess.CompletedProcess[bytes]":
    """The finished process; `args` are in its `sys.argv[1:]`."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
    )


def start_python(code: str, *args: str) -> "subprocess.Popen[bytes]":
    """A running process with all three streams piped."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdin=pipe, stdout=pipe, stderr=pipe
    )
