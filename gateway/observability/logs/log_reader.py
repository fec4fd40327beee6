"""
Reads log lines from the log file and its rotated ones, or from the systemd journal. Following goes over the
moment at which the file becomes an older one: what was written to it until then is read to its end before the
new one is begun.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from agent_core.storage.history_paging import lines_backwards
from gateway.errors import GatewayError, NotFound

_CHECK_EVERY_S = 0.3


class JournalFailed(GatewayError):
    """The journal cannot be read."""

    exit_code = 74


def log_files(file: Path) -> list[Path]:
    """The older files, oldest first, then the one that is written to; those that exist."""
    with suppress(OSError):
        older = [
            path
            for path in file.parent.glob("*")
            if path.name.startswith(f"{file.stem}.") and path.name.endswith(file.suffix) and path != file
        ]
        older = [path for path in older if path.is_file()]
        return sorted(older, key=lambda path: path.stat().st_mtime) + ([file] if file.exists() else [])
    return []


def newest_lines(file: Path) -> Iterator[str]:
    """Yield the lines of the log's files from the last one back."""
    for path in reversed(log_files(file)):
        with suppress(FileNotFoundError), path.open("rb") as log:
            end = os.fstat(log.fileno()).st_size
            for _, raw in lines_backwards(log.fileno(), end, max_line_bytes=1024 * 1024):
                if raw:
                    yield raw.decode("utf-8", "replace")


def from_files(
    file: Path,
    *,
    since: datetime | None = None,
    follow: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield the lines, oldest first, of files not ended before ``since``; ``follow`` continues."""
    names = log_files(file)
    for path in names if not follow else [path for path in names if path != file]:
        with suppress(FileNotFoundError):
            if since is None or path.stat().st_mtime >= since.timestamp():
                with path.open(encoding="utf-8", errors="replace") as lines:
                    yield from lines
    while follow:
        with suppress(FileNotFoundError), file.open(encoding="utf-8", errors="replace") as lines:
            yield from _followed(file, lines, sleep)
        sleep(_CHECK_EVERY_S)


def _followed(file: Path, lines: TextIO, sleep: Callable[[float], None]) -> Iterator[str]:
    """Lines until the file is another one, and then what is left of it."""
    rest = ""
    while True:
        moved = _is_other(file, lines)
        while chunk := lines.readline():
            rest += chunk
            if rest.endswith("\n"):
                yield rest
                rest = ""
        if moved:
            if rest:
                yield rest
            return
        sleep(_CHECK_EVERY_S)


def _is_other(file: Path, lines: TextIO) -> bool:
    try:
        now = file.stat()
    except FileNotFoundError:
        return True
    open_one = os.fstat(lines.fileno())
    return (now.st_dev, now.st_ino) != (open_one.st_dev, open_one.st_ino)


def from_journal(unit: str, *, since: datetime | None = None, follow: bool = False) -> Iterator[str]:
    """Yield systemd's lines of the unit. Raises NotFound (no journal) or JournalFailed."""
    program = shutil.which("journalctl")
    if program is None:
        raise NotFound(
            "there is no log file (gateway.log.file in the configuration) and no journal on this machine; in "
            "a container its engine has the lines: docker compose logs squidbot"
        )
    asked = [program, "--unit", unit, "--output", "cat", "--no-pager"]
    asked += ["--since", f"@{since.timestamp():.6f}"] if since is not None else []
    asked += ["--follow", "--lines", "all"] if follow else []
    with subprocess.Popen(  # noqa: S603 - a program of the system, and words that are ours
        asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield from process.stdout
            said = process.stderr.read().strip()
            if process.wait() != 0:
                raise JournalFailed(f"journalctl says: {said or process.returncode}")
        finally:
            process.terminate()
