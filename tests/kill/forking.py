"""The other side of `Nursery`: forks a life for each line of standard input, one at a time, and tells how it ended."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Never, Protocol, TypeVar

import structlog

_PR_SET_PDEATHSIG = 1


class Forked(Protocol):
    """What a life must say of itself: where its ``log`` goes, and when it is killed, if it has not ended by then."""

    @property
    def folder(self) -> str: ...

    @property
    def kill_after_s(self) -> float: ...


_Life = TypeVar("_Life", bound=Forked)


def serve(kind: type[_Life], live: Callable[[_Life], int]) -> None:
    """Read lives of ``kind`` as JSON; what ``live`` returns is the exit code of its process, 70 if it raises."""
    _die_with_parent()
    for line in sys.stdin:
        life = kind(**json.loads(line))
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _forked(life, live)
        handle = os.pidfd_open(pid)
        if not select.select([handle], [], [], life.kill_after_s)[0]:
            os.kill(pid, signal.SIGKILL)
        os.close(handle)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _forked(life: _Life, live: Callable[[_Life], int]) -> Never:
    """In the forked process: live, and leave without the parent's clean-up."""
    code = 70
    try:
        _die_with_parent()
        log = os.open(Path(life.folder) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = live(life)
    except BaseException:
        structlog.get_logger().exception("life.failed")
    finally:
        sys.stdout.flush()
        os._exit(code)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
