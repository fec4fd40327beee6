"""
One process per home folder, by ``flock``: the kernel lets go of it however the process ends.

The number of the holder stands in the file, for the message, with what it is: a daemon, or a command such as
``squidbot status`` that holds the lock for a moment. A starting daemon waits for a command instead of failing
for good; a command never waits for a daemon.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gateway.errors import AlreadyRunning, StateUnusable
from gateway.home import Home

__all__ = ["hold_home", "holder_of"]

Purpose = Literal["daemon", "command"]
_COMMAND_LIMIT_S = 60.0
_LOOK_EVERY_S = 0.05


@contextmanager
def hold_home(home: Home, *, purpose: Purpose = "daemon") -> Iterator[None]:
    """
    Be the only process on ``home``. May block for a few seconds, while a command is at work there.

    Raises:
        AlreadyRunning: Another one is; the text names its process id.
        StateUnusable: The lock file cannot be made.
    """
    try:
        descriptor = os.open(home.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateUnusable(f"the lock {home.lock_file} cannot be made: {error.strerror}") from error
    try:
        try:
            _take(descriptor)
        except BlockingIOError as error:
            pid, _ = _holder_in(descriptor)
            who = f"process {pid}" if pid else "another process"
            raise AlreadyRunning(
                f"squidbot already runs on {home.root} ({who}); stop it, or name another home with --home",
                pid=pid,
            ) from error
        except OSError as error:
            raise StateUnusable(
                f"{home.root} is on a file system that cannot lock files ({error.strerror}); use a local disk"
            ) from error
        _write_holder(descriptor, purpose)
        yield
    finally:
        # The file stays: removing it would let two processes hold two different files of one name.
        os.close(descriptor)


def holder_of(home: Home) -> int | None:
    """The process id of the daemon on ``home`` (0: unknown), None if there is none. Leaves no trace."""
    try:
        descriptor = os.open(home.lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid, purpose = _holder_in(descriptor)
        return None if purpose == "command" else pid
    except OSError:
        return None
    else:
        return None
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> None:
    give_up_at = time.monotonic() + _COMMAND_LIMIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if _holder_in(descriptor)[1] != "command" or time.monotonic() > give_up_at:
                raise
        time.sleep(_LOOK_EVERY_S)


def _write_holder(descriptor: int, purpose: Purpose) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {purpose}\n".encode(), 0)
    except OSError:
        # A full disk: the lock is held all the same, only the message to a second process is poorer.
        return


def _holder_in(descriptor: int) -> tuple[int, str]:
    pid, _, purpose = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip().partition(" ")
    return (int(pid) if pid.isdigit() else 0), purpose
