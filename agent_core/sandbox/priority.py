"""
How a command gives way to the daemon: each process is nice and lets whoever wakes up go first (Linux).

Each session is nice too where sessions have shares: with autogroups, see sched(7), each has its share of
the processors, and how nice a process is counts among those of its session alone. A new session begins with
a whole share. Where a control group can be made none has, see `agent_core.sandbox.control_groups`.
"""

from __future__ import annotations

import time

from agent_core.sandbox import syscalls
from agent_core.sandbox.process_tree import sessions_of
from agent_core.sandbox.raw_files import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
else:
    import posix as os  # as in `process_tree`

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES_SIZE, _NORMAL = 48, 0
_LONG_SLICE_NS = 100_000_000
"""The longest that Linux takes."""
_IDLE = 3 << 13
"""Of the disk only what nobody else wants."""
_A_LITTLE = 5
_TRIES, _PAUSE_S = 10, 0.03
"""Others may give way at the same moment."""


class Sessions:
    """Makes each session of a tree as ``nice`` as it is told; 0 leaves them."""

    def __init__(self, nice: int) -> None:
        self._nice = str(nice) if nice else ""
        self._done: set[int] = set()

    def give_way(self, tree: list[int]) -> bool:
        """
        See to the sessions that have come since the last time, as far as that can be had. False: ask again.

        Without a privilege one session of the whole machine can be changed in a tenth of a second.
        """
        if not self._nice:
            return True
        found = sessions_of(tree)
        self._done.intersection_update(found)
        for session in found.keys() - self._done:
            try:
                put(f"/proc/{found[session]}/autogroup", self._nice)
            except BlockingIOError:
                return False
            except OSError:
                continue  # it has ended, or the kernel has none
            self._done.add(session)
        return True


def give_way() -> None:
    """
    Give way to the daemon a little, where that can be had; for a process that began a session.

    One that computes without end leaves most of a processor to it, and gets all that nobody else wants.
    """
    sessions = Sessions(_A_LITTLE)
    for _ in range(_TRIES):
        if sessions.give_way([os.getpid()]):
            break
        time.sleep(_PAUSE_S)
    take_long_slices()
    try:
        os.nice(_A_LITTLE)
    except OSError:
        return


def take_long_slices() -> None:
    """
    Let whoever wakes up go first, where that can be had, with all that this process starts.

    A process with shorter slices of the processor need not wait until the current one is over, see
    sched_setattr(2). Before Linux 6.12 nothing changes.
    """
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)  # the call sets it too
    words = ((_ATTRIBUTES_SIZE, 4), (_NORMAL, 4), (0, 8), (nice, 4), (0, 4), (_LONG_SLICE_NS, 8), (0, 16))
    attributes = b"".join(value.to_bytes(size, "little", signed=True) for value, size in words)
    syscalls.syscall(number, 0, attributes, 0)


def be_modest(machine: str, nice: int) -> None:
    """
    Be the first to go when memory runs out; leave processor and disk to others, where that can be had.

    Not SCHED_IDLE: beside busy loops nothing would end in its time.
    """
    for ask in (
        lambda: put("/proc/self/oom_score_adj", "1000"),
        lambda: os.nice(nice),
        lambda: syscalls.checked(syscalls.syscall(_IOPRIO_SET[machine], 1, 0, _IDLE), "ioprio_set"),
    ):
        try:
            ask()
        except OSError:
            continue  # a service manager may refuse the last two
