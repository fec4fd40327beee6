"""
How much memory the processes of a command hold together, by /proc (Linux).

What they have mapped now is not all. Of shared memory the pages stay when nobody has them mapped any more, as
long as the mapping is there, so it counts by its size. What is in sockets is the kernel's, and nobody's in
/proc, so each socket counts as full. What was swapped out is somebody's still.
"""

from __future__ import annotations

from agent_core.sandbox.process_tree import content_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
else:
    import posix as os  # as in `process_tree`

_FEW_FILES = 8
"""A process with no more open files is not looked at for what they are."""
_SOCKET_BYTES = 2 * 212_992
"""What one takes before its sender must wait, with room for what the kernel needs beside it."""
_WATCH_BYTES = 10_000
"""Far more than it takes: the daemon needs some of those that the kernel grants a user in all."""
_PIECE = 1 << 16


def is_more_than(most: int, tree: list[int]) -> bool:
    """Whether the tree holds more bytes; what takes longer to see is looked at only if it may be more."""
    opened = [_open_files(pid) for pid in tree]
    sockets = len({one for found, _ in opened for one in found}) * _SOCKET_BYTES
    beside = sockets + sum(watched for _, watched in opened) * _WATCH_BYTES
    found = [_numbers(content_of(f"/proc/{pid}/status")) for pid in tree]
    if beside + sum(each.get(b"VmSize", 0) + each.get(b"VmSwap", 0) for each in found) <= most:
        return False
    shared: dict[bytes, int] = {}
    for pid in tree:
        for name, size in _shared(pid):
            shared[name] = max(size, shared.get(name, 0))
    held = beside + sum(shared.values())
    mine = [
        each.get(b"VmRSS", 0) - each.get(b"RssShmem", 0) + each.get(b"VmSwap", 0) for each in found
    ]  # pages that several have count several times so far
    return held + sum(mine) > most and held + sum(map(_part, tree, mine)) > most


def _part(pid: int, otherwise: int) -> int:
    """What a process has of pages that several have, and what it has alone; shared memory apart."""
    found = _numbers(content_of(f"/proc/{pid}/smaps_rollup"))
    if b"Pss" not in found:
        return otherwise
    return found[b"Pss"] - found.get(b"Pss_Shmem", 0) + found.get(b"SwapPss", 0)


def _numbers(content: bytes) -> dict[bytes, int]:
    """The lines of a file of /proc that are in kB, in bytes."""
    found = {}
    for line in content.split(b"\n"):
        name, _, value = line.partition(b":")
        if value.endswith(b" kB"):
            found[name] = int(value[:-3]) * 1024
    return found


def _shared(pid: int) -> list[tuple[bytes, int]]:
    """The pieces of shared memory that a process has mapped, with no name in any folder, and their sizes."""
    found = []
    for line in _whole(f"/proc/{pid}/maps").split(b"\n"):
        words = line.split(None, 5)
        if len(words) == 6 and words[1][3:] == b"s" and words[5] == b"/dev/zero (deleted)":
            begin, _, end = words[0].partition(b"-")
            found.append((words[4], int(words[2], 16) + int(end, 16) - int(begin, 16)))
    return found


def _open_files(pid: int) -> tuple[list[str], int]:
    """The sockets that a process has open, and how many files it may have the kernel watch (epoll(7))."""
    folder = f"/proc/{pid}/fd"
    found: list[str] = []
    try:
        names = os.listdir(folder)
        found.extend(os.readlink(f"{folder}/{name}") for name in names if len(names) > _FEW_FILES)
    except OSError:
        pass
    watching = found.count("anon_inode:[eventpoll]")
    return [each for each in found if each.startswith("socket:")], watching * (len(found) - watching)


def _whole(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    pieces = []
    try:
        while piece := os.read(handle, _PIECE):
            pieces.append(piece)
    except OSError:
        pass
    finally:
        os.close(handle)
    return b"".join(pieces)
