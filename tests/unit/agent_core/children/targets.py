"""Somebody to attack from a sandbox: a process, listeners of each kind, a home; without any test library."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def make_home(home: Path) -> Path:
    """A home as the daemon has it, with what must not be reached."""
    skill = home / "workspace" / "skills" / "a"
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text("do")
    (home / "workspace" / "MEMORY.md").write_text("know")
    (home / "workspace" / ".git").mkdir(exist_ok=True)
    (home / "run").mkdir(exist_ok=True)
    for name in ("secret", "victim", "movable", "deletable"):
        (home / name).write_text("something")
        (home / name).chmod(0o600)
    home.chmod(0o700)
    return home


@contextmanager
def targets_in(folder: Path) -> Iterator[dict[str, Any]]:
    """What is attacked, and how it is found."""
    held = ctypes.create_string_buffer(b"in the memory of the one who is attacked")
    with (
        socket.socket() as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as path,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        path.bind(str(folder / "control.sock"))
        abstract.bind(f"\0squidbot-test-{os.getpid()}")
        for each in (tcp, path, abstract):
            each.listen(20)
        groups = Path("/sys/fs/cgroup/pids")
        yield {
            "pid": os.getpid(),
            "address": ctypes.addressof(held),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "socket": str(folder / "control.sock"),
            "abstract": f"squidbot-test-{os.getpid()}",
            "group": str((groups if groups.is_dir() else groups.parent) / "cgroup.procs"),
        }


def about(targets: dict[str, Any], home: Path, tmp: Path) -> dict[str, Any]:
    """The targets, and those of a home."""
    return targets | {
        "home": str(home),
        "secret": str(home / "secret"),
        "victim": str(home / "victim"),
        "workspace": str(home / "workspace"),
        "tmp": str(tmp),
        "name": f"squidbot-test-{home.parent.name}",
    }


def results_of(said: str) -> dict[str, str]:
    """What came of each attempt."""
    return dict(line.split(" ", 1) for line in said.splitlines())
