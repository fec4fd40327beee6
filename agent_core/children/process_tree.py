"""
Everything that a runner has started, by /proc: what it takes, how it gives way to the daemon, and how it is
ended (Linux). The runner is the subreaper of its descendants (prctl(2)), so whoever loses their parent is its
child.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # see agent_core.children.confined_child
import time

from agent_core.children import syscalls
from agent_core.children.syscalls import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Any
else:
    import posix as os  # all that is needed here, without what `os` loads

_END_LIMIT_S, _PAUSE_S = 4.0, 0.005
_WRAPPER_MOMENTS, _MOMENT_S = 20, 0.0005
"""What ends by itself is given a moment: to look for everything takes longer."""
_PIECE = 65536
_BUSY = (b"R", b"D")
_USED, _THREADS = 11, 17
"""The words of /proc/PID/stat after the name."""


def end_all(report: dict[str, Any]) -> None:
    """Kill descendants until there are none; what becomes our child meanwhile goes with the next round."""
    give_up_at = time.monotonic() + _END_LIMIT_S
    moments = _WRAPPER_MOMENTS
    while time.monotonic() < give_up_at:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # whoever loses their parent is our child, so there is nobody left
        if moments and (children := own_children()) and all(map(_is_wrapper, children)):
            moments -= 1
            time.sleep(_MOMENT_S)
            continue
        tree = descendants()
        report.setdefault("ended", sum(_state(pid) not in ("", "Z") and not _is_wrapper(pid) for pid in tree))
        send_signal(signal.SIGKILL, tree)
        time.sleep(_PAUSE_S)
    report["left"] = "processes"


def end_below(root: int) -> None:
    """Kill all descendants of another process, which must be their subreaper and is ended afterwards."""
    give_up_at = time.monotonic() + _END_LIMIT_S
    while time.monotonic() < give_up_at:
        tree = [pid for pid in descendants(root) if _state(pid) not in ("", "Z")]
        if not tree:
            return
        send_signal(signal.SIGKILL, tree)
        time.sleep(_PAUSE_S)


def send_signal(number: int, processes: list[int]) -> None:
    """Send a signal to each process that still exists."""
    for pid in processes:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def _is_wrapper(pid: int) -> bool:
    """Return True for the first process of bubblewrap's namespace, which ends by itself after the last."""
    return content_of(f"/proc/{pid}/comm").strip() == b"bwrap"


def descendants(root: int = 0) -> list[int]:
    """
    All that live below ``root``, by itself this process, by their parents in /proc.

    Where others' processes are hidden, one that cannot be dumped is not shown there; as the child of one that
    is shown, or our own, it is.
    """
    children: dict[int, list[int]] = {}
    root = root or os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            words = content_of(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(words) > 1:
                children.setdefault(int(words[1]), []).append(int(name))
    found, seen = [root], {root}
    for pid in found:
        new = [child for child in (*children.get(pid, []), *_children(pid)) if child not in seen]
        found += dict.fromkeys(new)
        seen.update(new)
    return found[1:]


def own_children() -> list[int]:
    """Return the pids of the children of this process."""
    return _children(os.getpid())


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [
        int(word) for thread in threads for word in content_of(f"/proc/{pid}/task/{thread}/children").split()
    ]


def _state(pid: int) -> str:
    return content_of(f"/proc/{pid}/stat").rpartition(b")")[2][1:2].decode("ascii")


def processor_time(tree: list[int]) -> list[tuple[int, int]]:
    """Return pid and processor time (hundredths of a second) of each process that still exists."""
    used = []
    for pid in tree:
        words = content_of(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if words:
            used.append((pid, int(words[_USED]) + int(words[_USED + 1])))
    return used


def has_busy_thread(pid: int) -> bool:
    """Return True if a thread of a process runs, wants a processor or waits for a disk."""
    words = content_of(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not words or words[_THREADS] == b"1":
        return bool(words) and words[0] in _BUSY
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    stats = (content_of(f"/proc/{pid}/task/{one}/stat") for one in threads)
    return any(stat.rpartition(b")")[2][1:2] in _BUSY for stat in stats)


def threads_of(user: int) -> int:
    """Count the threads of a user: RLIMIT_NPROC counts them all."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = content_of(f"/proc/{name}/status").partition(b"\nUid:")[2]
            if fields and int(fields.split(None, 1)[0]) == user:
                count += int(fields.partition(b"\nThreads:")[2].split(None, 1)[0])
    return count


def exceeds_memory(most: int, tree: list[int]) -> bool:
    """
    Return True if processes hold more bytes together, in memory or swapped out.

    What several of them hold counts once. The kernel takes longer to say so, and is asked only if it matters.
    """
    if sum(map(_held_kilobytes, tree)) * 1024 <= most:
        return False
    parts = [
        _kilobytes(f"/proc/{pid}/smaps_rollup", b"Pss", b"SwapPss") or _held_kilobytes(pid) for pid in tree
    ]
    return sum(parts) * 1024 > most


def _held_kilobytes(pid: int) -> int:
    return _kilobytes(f"/proc/{pid}/status", b"VmRSS", b"VmSwap")


def _kilobytes(path: str, *names: bytes) -> int:
    words = [line.split() for line in content_of(path).split(b"\n")]
    return sum(int(each[1]) for each in words if len(each) == 3 and each[0][:-1] in names)


def content_of(path: str) -> bytes:
    """The first piece of a file; nothing if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, _PIECE)
    except OSError:
        return b""
    finally:
        os.close(handle)


if TYPE_CHECKING:
    import os
    from collections.abc import Callable
else:
    import posix as os  # as in `process_tree`

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13
"""Of the disk only what nobody else wants."""


def lower_priority(nice: int = 5) -> None:
    """Be nice to the daemon; for a process that began a session."""
    # A session that is nicer than 10 gets next to nothing beside busy loops: nothing in it ends in time.
    _ask(lambda: write_file("/proc/self/autogroup", str(min(nice, 10))))
    _ask(lambda: os.nice(nice))


def yield_resources(machine: str, nice: int) -> None:
    """Be the first to go in low memory; yield processor and disk. SCHED_IDLE would starve."""
    _ask(lambda: write_file("/proc/self/oom_score_adj", "1000"))
    if nice:
        lower_priority(nice)
    _ask(lambda: syscalls.check_result(syscalls.syscall(_IOPRIO_SET[machine], 1, 0, _IDLE), "ioprio_set"))


def _ask(what: Callable[[], object]) -> None:
    """Ask the service manager; it, or a kernel without the feature, may refuse."""
    try:
        what()
    except OSError:
        return


TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
else:
    import posix as os  # as in `process_tree`


def make_group(folders: list[str], processes: int) -> str:
    """
    Make a group of this run in the first folder that can bound so many processes; empty if none can.

    Only for root, whose processes no limit binds.
    """
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
