"""The real daemon asks of the C library what keeps it small (`gateway.system.process_tuning`)."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import Daemon

_HEAP_BYTES = 64 * 2**20
"""glibc reserves an arena of a thread in one piece of this size, at a multiple of it."""
_THREADS = """
import ctypes, threading
C = ctypes.CDLL(None)
for _ in range(3):
    one = threading.Thread(target=lambda: (C.malloc(2000), input()), daemon=True)
    one.start()
print("ready", flush=True)
one.join()
"""

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim") or sys.maxsize < 2**32,
    reason="the C library is not glibc on 64 bits",
)


def arenas(pid: int) -> int:
    """How many threads' arenas a process has: a used part at its beginning, and the reserve up to its end."""
    maps = re.findall(r"^(\w+)-(\w+) (\S+)", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    parts = [(int(start, 16), int(end, 16), rights) for start, end, rights in maps]
    return sum(
        start % _HEAP_BYTES == 0 and rights == "rw-p" and (end, start + _HEAP_BYTES, "---p") in parts
        for start, end, rights in parts
    )


def test_all_threads_of_the_daemon_share_one_arena(tmp_path: Path) -> None:
    """The daemon has threads and no arena for any of them; a process that was told nothing has some."""
    with Daemon(tmp_path / "home", {}) as daemon:
        daemon.up()
        [pid] = [
            int(child)
            for task in Path(f"/proc/{daemon.process.pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ] or [daemon.process.pid]
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
        assert arenas(pid) == 0
    with subprocess.Popen(
        [sys.executable, "-c", _THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as told_nothing:
        assert told_nothing.stdout is not None
        assert told_nothing.stdout.readline() == "ready\n"
        assert arenas(told_nothing.pid) > 0
        told_nothing.communicate("\n\n\n", timeout=120)
