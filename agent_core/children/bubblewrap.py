"""
The command line of bubblewrap: namespaces of its own, in which there is nothing but what is opened. The
limits and the filter of system calls are the same as beside Landlock; the filter comes by a descriptor and
holds from the start of the program on. `/` cannot be written, and there is no `/tmp`, no `/dev/shm`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence

from agent_core.children.rights import DEVICES, SYSTEM

FILTER_HANDLE = 60
"""The descriptor by which the filter comes."""
_ALONE = (
    *("--unshare-all", "--die-with-parent", "--cap-drop", "ALL"),
    *("--seccomp", str(FILTER_HANDLE), "--proc", "/proc"),
)


def find_program() -> str:
    """The program, by its whole path; empty if there is none."""
    return shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin") or ""


def wrap_command(
    program: str, words: Sequence[str], *, readable: Iterable[str], writable: Iterable[str], directory: str
) -> list[str]:
    """The words that run ``words`` inside."""
    line = [program, *_ALONE]
    for path in dict.fromkeys([*SYSTEM, *readable]):
        if path.startswith("/proc/"):
            continue  # it has its own
        if path.startswith("/dev/"):
            line += ["--dev-bind-try", path, path]
        elif os.path.islink(path):  # noqa: PTH114 - text, as everything here
            line += ["--symlink", os.readlink(path), path]  # noqa: PTH115
        else:
            line += ["--ro-bind-try", path, path]
    for path in DEVICES:
        line += ["--dev-bind-try", path, path]
    for path in writable:
        line += ["--bind", path, path]
    return [*line, "--remount-ro", "/proc", "--remount-ro", "/", "--chdir", directory, "--", *words]
