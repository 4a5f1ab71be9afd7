"""Runs a program on a terminal of its own and knows in which modes it leaves that terminal."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 40.0

_PRIVATE_MODE = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
_KEYBOARD_PUSH = re.compile(rb"\x1b\[>\d+u")
_KEYBOARD_POP = re.compile(rb"\x1b\[<\d*u")
_CURSOR = 25
_WRAP = 7


class PtyApp:
    """The program, the master side of its terminal, and all that it has written."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._cooked = termios.tcgetattr(slave)

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(env),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        self._slave = slave
        self.output = bytearray()

    def press(self, keys: bytes) -> None:
        """Types `keys`."""
        os.write(self._master, keys)

    def text(self) -> str:
        """What was drawn so far, without escape sequences, in the order of drawing."""
        return _ESCAPES.sub(b"", bytes(self.output)).decode("utf-8", "replace")

    def until(self, condition: Callable[[], object]) -> None:
        """Reads the terminal until `condition` holds."""
        limit = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > limit:
                raise AssertionError(f"never happened; drawn last: {self.text()[-1500:]!r}")
            self._read()

    def shows(self, text: str) -> None:
        """Waits until `text` was drawn after this call or before it."""
        self.until(lambda: text in self.text())

    def shows_anew(self, text: str) -> None:
        """Waits until `text` is drawn after what is there now."""
        seen = len(self.text())
        self.until(lambda: text in self.text()[seen:])

    def ended(self) -> int:
        """Waits for the end of the program; returns its exit status."""
        self.until(lambda: self.process.poll() is not None)
        while self._read():
            pass
        return self.process.wait()

    def left_on(self) -> set[str]:
        """What the program has switched on and not off again; empty for a clean terminal."""
        modes: dict[int, bool] = {}
        for numbers, action in _PRIVATE_MODE.findall(bytes(self.output)):
            for number in numbers.split(b";"):
                modes[int(number)] = action == b"h"
        left = {f"mode {n}" for n, is_on in modes.items() if is_on and n not in {_CURSOR, _WRAP}}
        if not modes.get(_CURSOR, True):
            left.add("hidden cursor")
        stream = bytes(self.output)
        if len(_KEYBOARD_PUSH.findall(stream)) > len(_KEYBOARD_POP.findall(stream)):
            left.add("keyboard protocol")
        if termios.tcgetattr(self._slave)[:4] != self._cooked[:4]:
            left.add("raw input")
        return left

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._slave)
        os.close(self._master)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.02)
        if ready:
            self.output += os.read(self._master, 65536)
        return bool(ready)


@contextmanager
def pty_app(argv: Sequence[str], cwd: Path, **env: str) -> Iterator[PtyApp]:
    """`argv` on a terminal of 120 columns and 40 rows; killed at the end if it still runs."""
    surroundings = {
        **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "XDG_STATE_HOME": str(cwd / "state"),
        **env,
    }
    app = PtyApp(argv, cwd, surroundings)
    try:
        yield app
    finally:
        app.close()
