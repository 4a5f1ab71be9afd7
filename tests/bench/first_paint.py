"""How long until the dashboard can be read? Starts it in a pseudo-terminal and waits for its parts.

    python tests/bench/first_paint.py [--runs 5]

The bar: header, metric list and footer within one second of process start, while the trainer is
still loading. Prints each time and exits 1 when the median misses the bar.
"""

import argparse
import fcntl
import os
import pty
import select
import shutil
import signal
import statistics
import struct
import sys
import termios
import time

BAR = 1.0
PATIENCE = 20.0
PARTS = (b"starting", b"Metrics", b"Quit")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    seconds = [first_paint() for _ in range(parser.parse_args().runs)]
    print("seconds:", " ".join(f"{value:.2f}" for value in seconds))
    median = statistics.median(seconds)
    print(f"median {median:.2f}, bar {BAR:.2f}")
    return 0 if median <= BAR else 1


def first_paint() -> float:
    """Seconds from starting the process to having read all parts of the first screen."""
    command = shutil.which("grpo-tui")
    assert command, "grpo-tui is not installed in this environment"
    start = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(command, [command, "run", "--", "sleep", "5"])
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        wait_for_parts(terminal, start + PATIENCE)
        return time.monotonic() - start
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def wait_for_parts(terminal: int, deadline: float) -> None:
    """Reads until every part was drawn. Raises `TimeoutError`."""
    drawn = b""
    while not all(part in drawn for part in PARTS):
        readable, _, _ = select.select([terminal], [], [], 0.01)
        if readable:
            drawn += os.read(terminal, 65536)
        if time.monotonic() > deadline:
            raise TimeoutError(f"not drawn within {PATIENCE:.0f} s: {drawn[-500:]!r}")


if __name__ == "__main__":
    sys.exit(main())
