"""The file tools: what they add to a plain read and a plain, durable write."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import anyio

from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal, median
from tests.file_tools_world import FileDesk

_CONTENT = "a line of a small file\n" * 40


def measure(rig: Rig) -> list[Figure]:
    """Reading, and writing anew, a file of a kilobyte; in turns with the plain way, on the same disk."""
    count = 30 if rig.quick else 300
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        read, plain_read, write, plain_write = anyio.run(_measure, Path(folder), count)
    note = f"median of {count}"
    return [
        Figure(
            "read_file over a plain read", read - plain_read, "ms", Goal("<", 2), plain_read, "a read", note
        ),
        Figure(
            "write_file over a plain write",
            write - plain_write,
            "ms",
            Goal("<", 2),
            plain_write,
            "a new file, fsync, renamed, fsync of the folder",
            f"median of {count}; with the earlier version and the note, both durable",
        ),
    ]


async def _measure(folder: Path, count: int) -> tuple[float, float, float, float]:
    desk = FileDesk(folder / "home")
    plain = desk.ws / "plain"
    plain.write_text(_CONTENT)
    await desk.ok("write_file", path="mine", content=_CONTENT)
    times: tuple[list[float], ...] = ([], [], [], [])
    for number in range(count):
        content = f"{_CONTENT}{number}"
        for which in (
            (0, 1, 2, 3) if number % 2 else (1, 0, 3, 2)
        ):  # none profits from what the other has left
            began = time.perf_counter()
            match which:
                case 0:
                    await desk.ok("read_file", path="mine")
                case 1:
                    plain.read_text()
                case 2:
                    await desk.ok("write_file", path="mine", content=content)
                case 3:
                    _write(plain, content)
            times[which].append(time.perf_counter() - began)
    read, plain_read, write, plain_write = (median(each) * 1000 for each in times)
    return read, plain_read, write, plain_write


def _write(path: Path, content: str) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
