"""
How a program gives way to the daemon: it is nice, and so is its session, where that can be had (Linux).

Where sessions have shares of the processors (autogroups, see sched(7)), the nice value of a process counts
only within its session, so the session is told as well. One that the program creates later has a whole share.
"""

from __future__ import annotations

from agent_core.children import syscalls
from agent_core.children.raw_files import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable
else:
    import posix as os  # as in `process_tree`

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13
"""Of the disk only what nobody else wants."""


def give_way(nice: int = 5) -> None:
    """Be nice to the daemon; for a process that began a session."""
    # A session that is nicer than 10 gets next to nothing beside busy loops: nothing in it ends in time.
    _ask(lambda: write_file("/proc/self/autogroup", str(min(nice, 10))))
    _ask(lambda: os.nice(nice))


def be_modest(machine: str, nice: int) -> None:
    """Be the first to go in low memory; yield processor and disk. SCHED_IDLE would starve."""
    _ask(lambda: write_file("/proc/self/oom_score_adj", "1000"))
    if nice:
        give_way(nice)
    _ask(lambda: syscalls.check_result(syscalls.syscall(_IOPRIO_SET[machine], 1, 0, _IDLE), "ioprio_set"))


def _ask(what: Callable[[], object]) -> None:
    """A service manager, or a kernel without it, may refuse."""
    try:
        what()
    except OSError:
        return
