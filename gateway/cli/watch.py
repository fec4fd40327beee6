"""
``squidbot status --watch``: the same text again and again on a screen of its own.

Plain ANSI: the alternate screen, so that what stood in the terminal is there again afterwards. Between two
looks the process sleeps in ``select`` on the keyboard and on a socket through which it learns of signals,
such as a new window size (`signal.set_wakeup_fd`), so it costs nothing and answers at once.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.errors import GatewayError

__all__ = ["EVERY_S", "frame", "watch"]

EVERY_S = 2.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_SIGNALS = (signal.SIGWINCH, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def watch(look: Callable[[], str]) -> int:
    """
    Show what ``look`` gives until q, Ctrl-C or SIGTERM. Returns the exit code.

    Where input or output is no terminal the text is shown once.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(look())  # noqa: T201 - what the command is for
        return 0
    keyboard = sys.stdin.fileno()
    with _screen(keyboard), _signals() as heard:
        while True:
            text = _looked(look)
            next_at = time.monotonic() + EVERY_S
            while True:
                _draw(text)
                left_s = next_at - time.monotonic()
                ready, _, _ = select.select([keyboard, heard], [], [], max(0.0, left_s))
                if not ready:
                    break
                if keyboard in ready and _wants_to_leave(os.read(keyboard, 64)):
                    return 0
                if heard in ready and set(heard.recv(64)) - {signal.SIGWINCH}:
                    return 0


def frame(text: str, columns: int, lines: int, now: str) -> str:
    """What a terminal of this size is sent so that it shows ``text``, cut where it does not fit. Pure."""
    head = f"{now}  every {EVERY_S:g} s, q leaves"
    rows = [head, "", *text.splitlines()]
    if len(rows) > lines:
        rows = [*rows[: max(0, lines - 1)], "…"]
    shown = [f"{row[: max(0, columns - 1)]}{_REST_OF_LINE}" for row in rows[:lines]]
    return _HOME + "\n".join(shown) + _REST_OF_SCREEN


def _looked(look: Callable[[], str]) -> str:
    """The text, or in its place what keeps it from being told; the next look may succeed."""
    try:
        return look()
    except GatewayError as error:
        return f"squidbot: {error}"


def _draw(text: str) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    sys.stdout.write(frame(text, size.columns, size.lines, time.strftime("%Y-%m-%d %H:%M:%S")))
    sys.stdout.flush()


def _wants_to_leave(keys: bytes) -> bool:
    """q, Ctrl-C, Ctrl-D, or the terminal is gone."""
    return not keys or bool(set(keys) & set(b"qQ\x03\x04"))


@contextmanager
def _screen(keyboard: int) -> Iterator[None]:
    """The alternate screen, and keys one by one."""
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        sys.stdout.write(_ENTER)
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket on which the number of each signal arrives as a byte."""
    ear, mouth = socket.socketpair()
    ear.setblocking(False)
    mouth.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    old = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    try:
        yield ear
    finally:
        signal.set_wakeup_fd(old)
        for number, handler in before.items():
            signal.signal(number, handler)
        ear.close()
        mouth.close()
