"""
Runs one command and ends with it everything that it has started (Linux). Run by path, never imported.

``python -I -S tree.py PARENT COMMAND…``. A process group is not enough: a child that calls ``setsid`` leaves
it. This process is the subreaper of its descendants (prctl(2)): whoever loses their parent becomes its child.
As soon as the command ends, SIGTERM comes or the parent dies, all descendants are killed and reaped. It ends
with the code of the command (128 + the signal that ended it), or with 127 and `NOT_STARTED` on its output.

It is started for each look at a command, so it imports next to nothing.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

NOT_STARTED = b"\0not started: "
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIMIT_S = 4.0
_PAUSE_S = 0.005


class _Stopped(BaseException):
    pass


def _stop(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _run(parent: int, words: list[str]) -> int:
    system = ctypes.CDLL(None)
    system.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _stop)
    try:
        system.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            return 1  # it died before it could be noticed
        try:
            # Python ignores some signals, and a command must not inherit that.
            command = os.posix_spawnp(
                words[0], words, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM]
            )
        except OSError as error:
            os.write(1, NOT_STARTED + type(error).__name__.encode())
            return 127
        while True:
            ended, status = os.wait()
            if ended == command:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
    except _Stopped:
        return 128 + int(signal.SIGTERM)


def _end_all() -> None:
    """Kill descendants until there are none; what becomes our child meanwhile goes with the next round."""
    give_up_at = time.monotonic() + _LIMIT_S
    while time.monotonic() < give_up_at:
        for pid in _descendants():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE_S)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not loaded here
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                handle = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    above = int(os.read(handle, 4096).rpartition(b")")[2].split()[1])
                finally:
                    os.close(handle)
                children.setdefault(above, []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def main() -> int:
    """Run the command that the arguments name; returns the exit code."""
    try:
        return _run(int(sys.argv[1]), sys.argv[2:])
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_all()


if __name__ == "__main__":
    os._exit(main())
