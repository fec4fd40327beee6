"""``squidbot status --watch``: the same text again and again, on a screen of its own."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from gateway.errors import GatewayError

__all__ = ["EVERY_S", "watch"]

EVERY_S = 2.0


def watch(look: Callable[[], str]) -> int:
    """
    Show what ``look`` gives until q, Ctrl-C or SIGTERM. Returns the exit code.

    Where input or output is no terminal the text is shown once.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(look())  # noqa: T201 - what the command is for
        return 0
    live = Live(screen=True, auto_refresh=False)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGWINCH, lambda *_: live.refresh())
    keyboard = sys.stdin.fileno()
    try:
        with _single_keys(keyboard), live:
            while True:
                head = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  every {EVERY_S:g} s, q leaves"
                text = Text(f"{head}\n\n{_looked(look)}", no_wrap=True, overflow="crop")
                live.update(text, refresh=True)
                if _leaves(keyboard, within_s=EVERY_S):
                    return 0
    except KeyboardInterrupt:
        return 0


def _looked(look: Callable[[], str]) -> str:
    """The text, or in its place what keeps it from being told; the next look may succeed."""
    try:
        return look()
    except GatewayError as error:
        return f"squidbot: {error}"


def _leaves(keyboard: int, *, within_s: float) -> bool:
    """Whether somebody presses q or Ctrl-D in this time, or the terminal is gone."""
    until = time.monotonic() + within_s
    while select.select([keyboard], [], [], max(0.0, until - time.monotonic()))[0]:
        keys = os.read(keyboard, 64)
        if not keys or set(keys) & set(b"qQ\x04"):
            return True
    return False


@contextmanager
def _single_keys(keyboard: int) -> Iterator[None]:
    """Keys arrive one by one, and are not echoed."""
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
