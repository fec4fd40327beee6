"""``squidbot status --watch``: redraws the status on the terminal's alternate screen."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.live import Live
from rich.text import Text

from gateway.errors import GatewayError

EVERY_S = 2.0


def watch(look: Callable[[], str]) -> int:
    """Show ``look`` until q, Ctrl-C or SIGTERM, once without a terminal; return the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(look())  # noqa: T201 - what the command is for
        return 0
    live = Live(screen=True, auto_refresh=False)
    keyboard = sys.stdin.fileno()
    try:
        with _signals() as signals, _single_keys(keyboard), live:
            while True:
                head = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  every {EVERY_S:g} s, q leaves"
                text = Text(f"{head}\n\n{_looked(look)}", no_wrap=True, overflow="crop")
                live.update(text, refresh=True)
                until = time.monotonic() + EVERY_S
                while (left := until - time.monotonic()) > 0:
                    ready = select.select([keyboard, signals.fileno()], [], [], left)[0]
                    woken = signals.woken()
                    if signals.ended or (keyboard in ready and _leaves(keyboard)):
                        return 0
                    if woken:
                        live.refresh()  # the window has another size
    except KeyboardInterrupt:
        return 0


def _looked(look: Callable[[], str]) -> str:
    """The text, or in its place what keeps it from being told; the next look may succeed."""
    try:
        return look()
    except GatewayError as error:
        return f"squidbot: {error}"


def _leaves(keyboard: int) -> bool:
    """Return True if q or Ctrl-D was pressed, or the terminal is gone."""
    keys = os.read(keyboard, 64)
    return not keys or bool(set(keys) & set(b"qQ\x04"))


class _Signals:
    """
    SIGINT, SIGTERM and SIGHUP end what waits, also where the exception that they raise is lost (in a callback
    of the interpreter); any signal, SIGWINCH too, makes ``fileno`` readable.
    """

    def __init__(self) -> None:
        self.ended = False
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGWINCH, lambda *_: None)

    def _end(self, *_: object) -> None:
        self.ended = True
        raise KeyboardInterrupt

    def fileno(self) -> int:
        return self._read

    def woken(self) -> bool:
        """Return True if a signal has arrived since the last call."""
        with suppress(BlockingIOError):
            return bool(os.read(self._read, 64))
        return False

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)


@contextmanager
def _signals() -> Iterator[_Signals]:
    signals = _Signals()
    try:
        yield signals
    finally:
        signals.close()


@contextmanager
def _single_keys(keyboard: int) -> Iterator[None]:
    """Keys arrive one by one, and are not echoed."""
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
