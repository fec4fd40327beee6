"""
One process per home folder, by ``flock``: the kernel releases it however the process ends. Locked are the
home folder, which cannot be removed without its content, and ``run/lock``, for file systems that cannot lock
folders and earlier versions. The file names the holder's pid and purpose. A starting daemon waits for a
command; a command never waits for a daemon or a chat.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from gateway.errors import AlreadyRunning, ChatOpen, StateUnusable
from gateway.system.home import Home
from gateway.system.ownership import Host
from gateway.system.restore_marker import check_no_restore_pending

Purpose = Literal["daemon", "chat", "command"]
_CHECK_EVERY_S = 0.05


@contextmanager
def hold_home(home: Home, *, purpose: Purpose = "daemon", while_unfinished: bool = False) -> Iterator[None]:
    """
    Lock ``home`` for this process, waiting seconds for a command.

    Root's files in another's home are handed over afterwards. ``while_unfinished`` permits an interrupted
    restore. Raises AlreadyRunning, ChatOpen, Unfinished or StateUnusable.
    """
    with ExitStack() as opened:
        try:
            folder = opened.enter_context(_opened(home.root, os.O_RDONLY | os.O_DIRECTORY))
            # The file stays: removing it would let two processes hold two different files of one name.
            descriptor = opened.enter_context(_opened(home.lock_file, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise StateUnusable(f"the lock {home.lock_file} cannot be made: {error.strerror}") from error
        try:
            _take(descriptor, folder)
        except BlockingIOError as error:
            refuse_chat(home)
            pid = _holder_in(descriptor)[0] or _holder_by_kernel(folder)
            who = f"process {pid}" if pid else "another process"
            raise AlreadyRunning(
                f"squidbot already runs on {home.root} ({who}); stop it, or name another home with --home",
                pid=pid,
            ) from error
        except OSError as error:
            raise StateUnusable(
                f"{home.root} is on a file system that cannot lock files ({error.strerror}); use a local disk"
            ) from error
        if not while_unfinished:
            check_no_restore_pending(home.root)
        _write_holder(descriptor, purpose)
        host = Host(home.root)
        if host.is_foreign_root:
            opened.callback(host.hand_over)
            host.refuse_links()
        yield


def refuse_chat(home: Home) -> None:
    """Raise `ChatOpen` if a ``squidbot chat`` works on ``home`` without a daemon."""
    with suppress(OSError), _opened(home.lock_file, os.O_RDONLY) as descriptor:
        pid, purpose = _holder_in(descriptor)
        if purpose == "chat" and _is_taken(descriptor):
            raise ChatOpen(
                f"`squidbot chat` (process {pid}) uses {home.root} without a daemon; leave it with /quit, "
                "then try again",
                pid=pid,
            )


def holder_of(home: Home) -> int | None:
    """The process id of the daemon or chat on ``home`` (0: unknown); None: there is none. Leaves no trace."""
    with suppress(OSError), _opened(home.lock_file, os.O_RDONLY) as descriptor:
        pid, purpose = _holder_in(descriptor)
        if _is_taken(descriptor):
            return None if purpose == "command" else pid
    with suppress(OSError), _opened(home.root, os.O_RDONLY | os.O_DIRECTORY) as folder:
        if _is_taken(folder):
            return _holder_by_kernel(folder)
    return None


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    """Return True if somebody holds the lock; False for a file that cannot be locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _take(descriptor: int, folder: int) -> None:
    """
    Lock both, the file first: who waits for a command must be able to read who that is.

    A look from outside (`holder_of`) takes either for an instant, so nobody gives up at the first try.
    """
    start = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_folder(folder)
            return
        except BlockingIOError:
            waited_s = time.monotonic() - start
            limit_s = 60.0 if _holder_in(descriptor)[1] == "command" else 0.3
            if waited_s > limit_s:
                raise
        time.sleep(_CHECK_EVERY_S)


def _holder_by_kernel(folder: int) -> int:
    """Return the pid that holds the lock of the folder by /proc/locks; 0 if unknown."""
    found = os.fstat(folder)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and words[4].isdigit():
                return int(words[4])
    return 0


def _lock_folder(folder: int) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        # Some network file systems lock files only.
        import structlog  # noqa: PLC0415 - commands come by here, and it would cost them a third of their time

        structlog.get_logger(__name__).debug("lock.folder_not_lockable", error=str(error))


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
