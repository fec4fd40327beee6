"""What a process takes at one moment, read from /proc, and the size of its files."""

from __future__ import annotations

import contextlib
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sample:
    """``at_s`` counts from the begin of the load; memory and sizes in kB (1024 bytes)."""

    at_s: float
    said: int
    rss_kb: int
    anonymous_kb: int
    descriptors: int
    threads: int
    database_kb: int
    home_kb: int


def sample(pid: int, home: Path, *, at_s: float, said: int) -> Sample:
    """
    Look at a process and its home folder.

    Raises:
        OSError: The process has gone.
    """
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    sizes = _sizes(home)
    return Sample(
        at_s=at_s,
        said=said,
        rss_kb=int(status["VmRSS"].split()[0]),
        anonymous_kb=int(status["RssAnon"].split()[0]),
        descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        threads=int(status["Threads"]),
        database_kb=sum(size for path, size in sizes.items() if path.name.startswith("gateway.db")) // 1024,
        home_kb=sum(sizes.values()) // 1024,
    )


def _sizes(home: Path) -> dict[Path, int]:
    """All files with their bytes; one that goes away meanwhile is not an error."""
    sizes: dict[Path, int] = {}
    for path in home.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                sizes[path] = found.st_size
    return sizes
