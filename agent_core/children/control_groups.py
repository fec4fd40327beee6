"""
The control group that bounds the processes of one command where no limit binds its user, who is root (Linux).
With version 1 of control groups processes have a hierarchy of their own; with version 2 there is one for all.
"""

from __future__ import annotations

from agent_core.children.syscalls import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
else:
    import posix as os  # as in `process_tree`


def make_group(folders: list[str], processes: int) -> str:
    """Make a group of this run in the first folder that can bound so many processes; empty if none can."""
    for folder in folders:
        group = f"{folder}/squidbot-{os.getpid()}"
        try:
            os.mkdir(group)
        except FileExistsError:
            pass  # of a runner that was killed, whose number has come again
        except OSError:
            continue
        try:
            write_file(f"{group}/pids.max", str(processes))
        except OSError:
            remove_group(group)
            continue
        return group
    return ""


def enter_group(group: str) -> None:
    """Go into a group. One thread that moves itself, where that can be said, waits for nobody."""
    try:
        write_file(f"{group}/tasks", "0")
    except FileNotFoundError:
        write_file(f"{group}/cgroup.procs", "0")


def remove_group(group: str) -> bool:
    """Remove a group in which no process is. False: it cannot be removed."""
    try:
        os.rmdir(group)
    except OSError:
        return False
    return True
