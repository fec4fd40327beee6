"""
One process per home folder, by ``flock``: the kernel lets go of it however the process ends.

The number of the holder stands in the file, for the message; it is never what decides.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import AlreadyRunning, StateUnusable
from gateway.home import Home

__all__ = ["hold_home", "holder_of"]


@contextmanager
def hold_home(home: Home) -> Iterator[None]:
    """
    Be the only process on ``home``.

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
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = _pid_in(descriptor)
            who = f"process {pid}" if pid else "another process"
            raise AlreadyRunning(
                f"squidbot already runs on {home.root} ({who}); stop it, or name another home with --home",
                pid=pid,
            ) from error
        except OSError as error:
            raise StateUnusable(
                f"{home.root} is on a file system that cannot lock files ({error.strerror}); use a local disk"
            ) from error
        _write_pid(descriptor)
        yield
    finally:
        # The file stays: removing it would let two processes hold two different files of one name.
        os.close(descriptor)


def holder_of(home: Home) -> int | None:
    """The process id of whoever works on ``home``; None if nobody does. Leaves no trace."""
    try:
        descriptor = os.open(home.lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(descriptor) or 0
    except OSError:
        return None
    else:
        return None
    finally:
        os.close(descriptor)


def _write_pid(descriptor: int) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        # A full disk: the lock is held all the same, only the message to a second process is poorer.
        return


def _pid_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
