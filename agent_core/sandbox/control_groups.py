"""
The control groups of one command: they bound its processes and weigh it at the processor (Linux, as root).

In a group with a weight, no session that a command creates has a share of its own. With version 1 of control
groups each controller has its own hierarchy; with version 2 one group does both.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # see agent_core.sandbox.child

from agent_core.sandbox.process_tree import content_of, send_signal
from agent_core.sandbox.raw_files import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
else:
    import posix as os  # as in `process_tree`

_PREFIX = "squidbot-"


def made(folders: list[str], processes: int) -> list[str]:
    """Groups of this runner below some of the ``folders``; none if so many processes cannot be bounded."""
    wanted = {"pids.max": processes, **_weights(100)}
    found = []
    for folder in folders:
        _remove_left(folder)
        group = f"{folder}/{_PREFIX}{os.getpid()}"
        try:
            os.mkdir(group)
        except OSError:
            continue
        settled = {name for name, value in wanted.items() if _is_set(f"{group}/{name}", value)}
        wanted = {name: value for name, value in wanted.items() if name not in settled}
        if settled:
            found.append(group)
        else:
            os.rmdir(group)
    if "pids.max" in wanted:
        remove(found)
        return []
    return found


def weigh(groups: list[str], weight: int) -> None:
    """``weight`` is in hundredths of what others have, and is left out where it cannot be had."""
    for group in groups:
        for name, value in _weights(weight).items():
            _is_set(f"{group}/{name}", value)


def enter(group: str) -> None:
    """Go into a control group. One thread that moves itself, where that can be said, waits for nobody."""
    try:
        put(f"{group}/tasks", "0")
    except FileNotFoundError:
        put(f"{group}/cgroup.procs", "0")


def remove(groups: list[str]) -> list[str]:
    """Remove groups in which no process is; those that cannot be removed."""
    left = []
    for group in groups:
        try:
            os.rmdir(group)
        except OSError:
            left.append(group)
    return left


def _remove_left(folder: str) -> None:
    """Remove groups of runners that have ended without doing so, and end what is still in them."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        runner = name.removeprefix(_PREFIX)
        if name == runner or not runner.isdigit():
            continue
        if int(runner) == os.getpid() or not content_of(f"/proc/{runner}/stat"):
            left = map(int, content_of(f"{folder}/{name}/cgroup.procs").split())
            send_signal(signal.SIGKILL, [pid for pid in left if pid])  # 0: it is not in our namespace
            remove([f"{folder}/{name}"])  # what was ended just now keeps it until the next time


def _weights(weight: int) -> dict[str, int]:
    """In both versions of control groups."""
    return {"cpu.weight": weight, "cpu.shares": weight * 1024 // 100}


def _is_set(setting: str, value: int) -> bool:
    try:
        put(setting, str(value))
    except OSError:
        return False
    return True
