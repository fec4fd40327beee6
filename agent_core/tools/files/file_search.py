"""
The daemon's side of file search, which runs in a process of its own
(`agent_core.tools.files.file_search_child`). A linear-time matcher would need a library and speak another
dialect; ``rg`` is not on every machine. A child with a deadline is on all of them, and contains everything
else that a search can do as well: a folder of a hundred thousand files, a huge file, a disk that hangs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import anyio
import anyio.abc

from agent_core.errors import ToolFailed, ToolRetry

_CHILD = Path(__file__).with_name("file_search_child.py")
_GRACE_S = 1.0


@dataclass(slots=True)
class Hits:
    """The hits; ``stopped`` says that not everything was searched."""

    files: list[dict[str, Any]] = field(default_factory=list)
    looked_at: int = 0
    skipped: int = 0
    more: bool = False
    stopped: bool = False


async def search_below(
    folder: int,
    *,
    pattern: str,
    glob: str,
    ignore_case: bool,
    limit: int,
    forbidden: Sequence[tuple[int, int]],
    hidden: Sequence[str] = (),
    seconds: float = 20.0,
) -> Hits:
    """Search below an open folder. Raises ToolRetry for a bad pattern, ToolFailed."""
    asked = {
        "folder": folder,
        "pattern": pattern,
        "glob": glob,
        "ignore_case": ignore_case,
        "limit": limit,
        "forbidden": list(forbidden),
        "hidden": list(hidden),
        "seconds": seconds,
    }
    command = [sys.executable, "-I", "-S", str(_CHILD)]
    try:
        process = await anyio.open_process(
            command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            pass_fds=[folder],
            start_new_session=True,
            env={"LC_ALL": "C.UTF-8"},
        )
    except OSError as error:
        raise ToolFailed("The search cannot be started at the moment.") from error
    output = bytearray()
    try:
        with anyio.move_on_after(seconds + _GRACE_S):
            await _talk(process, json.dumps(asked).encode(), output)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    return _read(bytes(output))


async def _talk(process: anyio.abc.Process, asked: bytes, output: bytearray) -> None:
    assert process.stdin is not None  # both were asked for
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.send(asked)
        await process.stdin.aclose()
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while len(output) < 4_000_000:
            output += await process.stdout.receive()


def _read(output: bytes) -> Hits:
    hits = Hits(stopped=True)  # until its last line says otherwise
    for line in output.split(b"\n")[:-1]:
        said = json.loads(line)
        if "invalid" in said:
            raise ToolRetry(f"The pattern is not a valid Python regular expression: {said['invalid']}.")
        if "path" in said:
            hits.files.append(said)
        elif "more" in said:
            hits.more = True
        elif "done" in said:
            hits.looked_at, hits.skipped, hits.stopped = said["files"], said["skipped"], said["stopped"]
    return hits
