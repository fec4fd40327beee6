"""
The small interpreter between the daemon and a program that goes on running (Linux). The program has the
standard streams; the runner itself keeps none of them. The program gives way to the daemon. The runner is the
subreaper of its descendants, as `agent_core.children.confined_child` is. When the program ends, at SIGTERM
and when the daemon dies, it kills and reaps descendants until there are none. The order comes as `marshal`
through the descriptor that the second argument names.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # see agent_core.children.confined_child
import marshal
import os
import sys

from agent_core.children import syscalls
from agent_core.children.confined_child import ChildStopped, stop_once
from agent_core.children.process_tree import end_all, lower_priority
from agent_core.children.syscalls import read_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PDEATHSIG, _SUBREAPER = 1, 36
_NOT_STARTED = 127


def main() -> None:
    """Run the program and end with it; never returns."""
    code = _NOT_STARTED
    try:
        signal.signal(signal.SIGTERM, stop_once)
        syscalls.prctl(_SUBREAPER, 1, 0, 0, 0)
        syscalls.prctl(_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        handle = int(sys.argv[2])
        order = marshal.loads(read_all(handle))  # noqa: S302 - the daemon wrote it
        os.close(handle)  # the program is not to have it
        if os.getppid() == order["parent"]:  # else it died before that could be noticed
            code = _run(order)
    except ChildStopped:
        code = 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all({})
    os._exit(code)


def _run(order: dict[str, Any]) -> int:
    runner = os.getpid()
    program = os.fork()
    if program == 0:
        _become(order, runner)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    while True:
        pid, status = os.waitpid(-1, 0)  # whoever loses their parent is our child, and is reaped here
        if pid == program:
            found = os.waitstatus_to_exitcode(status)
            return found if found >= 0 else 128 - found


def _become(order: dict[str, Any], runner: int) -> None:
    try:
        os.setsid()
        syscalls.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != runner:
            os._exit(_NOT_STARTED)
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
                file.write("1000")
        except OSError:
            pass
        lower_priority()
        words = order["words"]
        os.execvpe(words[0], words, order["environment"])  # noqa: S606 - the owner has configured them
    except OSError as error:
        os.write(2, f"cannot be started: {error.strerror or error}\n".encode("utf-8", "replace"))
    except BaseException as error:  # noqa: BLE001 - told to the daemon
        os.write(2, f"cannot be started: {type(error).__name__}\n".encode())
    os._exit(_NOT_STARTED)
