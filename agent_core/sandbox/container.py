"""
The command line of a container engine, docker or podman: a container for each run, from an image with Python.

The container has no network, no capability, an image that cannot be written, and of the machine's files only
what is opened. The runner of the sandbox is in it and confines the program once more, as it does elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence

from agent_core.sandbox.rights import Limits

PRIVATE = "/tmp"  # noqa: S108 - that of the container, in memory
"""Where a run gets a folder of its own."""
MEETING = "/run/squidbot.sock"
"""Where the runner gives its listener away, see `agent_core.sandbox.listener_child`."""
_SPARE_BYTES, _SPARE_PROCESSES = 64_000_000, 2
"""For the runner itself, which has two threads."""
_UNSAFE = frozenset(',"\\')


def found() -> str:
    """The engine by its whole path, podman first because it needs no root; empty if there is none."""
    path = "/usr/local/bin:/usr/bin:/bin"
    return shutil.which("podman", path=path) or shutil.which("docker", path=path) or ""


def command_line(
    engine: str,
    image: str,
    runner: Sequence[str],
    *,
    limits: Limits,
    readable: Iterable[str],
    writable: Iterable[str],
    meets_at: str = "",
) -> list[str]:
    """
    The words that start ``runner`` in a container; ``meets_at`` is the socket that it finds at `MEETING`.

    A path with a comma or a quote in it is left out.
    """
    memory = limits.memory_bytes + _SPARE_BYTES
    room = min(each for each in (limits.disk_bytes, limits.memory_bytes, 1_000_000_000) if each) // 2
    user = os.getuid()
    line = [
        *(engine, "run", "--rm", "--interactive", "--pull=never", "--network=none", "--read-only"),
        *("--cap-drop=ALL", "--security-opt=no-new-privileges", "--log-driver=none"),
        *("--hostname=sandbox", f"--user={user}:{os.getgid()}", "--entrypoint=python3"),
        f"--pids-limit={limits.processes + _SPARE_PROCESSES}",
        f"--tmpfs={PRIVATE}:rw,exec,nosuid,nodev,mode=1777,size={room}",
    ]
    if limits.memory_bytes:
        line += [f"--memory={memory}", f"--memory-swap={memory}"]
    if user and engine.endswith("podman"):
        line.append("--userns=keep-id")
    mounts = [(path, path, ",readonly") for path in dict.fromkeys(readable)]
    mounts += [(path, path, "") for path in dict.fromkeys(writable)]
    mounts += [(meets_at, MEETING, "")] if meets_at else []
    for path, target, suffix in mounts:
        if _UNSAFE.isdisjoint(path) and path.isprintable():
            line.append(f"--mount=type=bind,source={path},target={target}{suffix}")
    return [*line, image, *runner]
