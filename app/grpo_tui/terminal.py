"""What keeps the terminal usable: signals, bad bytes from the keyboard, and our own crashes."""

import asyncio
import codecs
import os
import selectors
import signal
import sys
from typing import Final

from rich.text import Text
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.worker import WorkerFailed

from grpo_tui.crash_report import crash_line, write_crash_report

_ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_READ_BYTES: Final = 4096
_POLL_SECONDS: Final = 0.1


class GuardedDriver(LinuxDriver):
    """Textual's driver with three faults taken out.

    It would end the app at the first byte from the keyboard that is not UTF-8, spin when the
    terminal is gone, and leave the mouse's pixel mode on.
    """

    def run_input_thread(self) -> None:
        """Reads the terminal until the app ends or the terminal is gone."""
        from textual._xterm_parser import XTermParser

        parser = XTermParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_POLL_SECONDS):
                    data = self._read()
                    if not data:
                        # The handler of a hang-up ends the app in the ordinary way.
                        os.kill(os.getpid(), signal.SIGHUP)
                        return
                    for event in parser.feed(decode(data)):
                        self.process_message(event)
                for event in parser.tick():
                    self.process_message(event)

    def _read(self) -> bytes:
        try:
            return os.read(self.fileno, _READ_BYTES)
        except OSError:
            return b""

    def _disable_mouse_support(self) -> None:
        super()._disable_mouse_support()
        if self._mouse:
            self.write("\x1b[?1016l")
            self.flush()


class GuardedApp(App[None]):
    """An app that leaves a clean terminal whatever ends it.

    SIGTERM and SIGHUP end it with 128+n; a crash writes a report file and tells its path.
    """

    broken_off: int | None = None
    """Exit code of an end that came from outside or from a fault; None for an ordinary one."""

    def get_driver_class(self) -> type[Driver]:
        """Our driver wherever Textual would take its own for a terminal."""
        chosen = super().get_driver_class()
        return GuardedDriver if chosen is LinuxDriver else chosen

    def on_mount(self) -> None:
        """Takes the signals for the life of the event loop, so that none comes in between."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for number in _ENDING_SIGNALS:
            loop.add_signal_handler(number, self._end_by_signal, number)

    def _end_by_signal(self, number: signal.Signals) -> None:
        self.broken_off = 128 + number
        self.exit(return_code=self.broken_off)

    def _fatal_error(self) -> None:
        """In place of Textual's traceback, which shows local variables and with them secrets."""
        self.broken_off = 1
        error: BaseException | None = self._exception or sys.exc_info()[1]
        if isinstance(error, WorkerFailed):
            error = error.error
        if error is not None:
            line = crash_line(error, write_crash_report(error))
            self._exit_renderables.append(Text(line, overflow="fold"))
        self._close_messages_no_wait()
