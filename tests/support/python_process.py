"""Runs Python code in a process of its own, for what would disturb the one that runs the tests."""

import os
import subprocess
import sys

SECONDS = 60
"""Far more than any of these programs takes; a hang fails the test instead of blocking it."""


def run_python(code: str, *args: str) -> "subprocess.CompletedProcess[bytes]":
    """The finished process; `args` are in its `sys.argv[1:]`."""
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        check=False,
        env=_environment(),
    )


def start_python(code: str, *args: str) -> "subprocess.Popen[bytes]":
    """A running process with all three streams piped."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment())


def _environment() -> dict[str, str]:
    """As at a user's: without what some machines set for their own tests."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
