"""
The process that searches files. It is started by path and imports little but the standard library. A model's
regular expression can take for ever, and a thread that runs one holds everything else; so it runs here, with
limits that the kernel keeps, and its parent ends it. Standard input says what is wanted, standard output has
one JSON object a line: hits as they are found, and at the end what was looked at. The folder to search is an
inherited handle, below which no link is followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import signal
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from agent_core.confined_files import READ, identity_of
from agent_core.text import decode_text

_MAX_FILE_BYTES = 5_000_000
_SHOWN_CHARS = 300
_MEMORY_BYTES = 1_000_000_000
_SKIPPED = {".git"}


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob as a pattern: ``*`` and ``?`` stay in one part, ``**`` spans parts."""
    found, at = "", 0
    while at < len(glob):
        if glob.startswith("**/", at):
            found, at = found + "(?:[^/]+/)*", at + 3
        elif glob.startswith("**", at):
            found, at = found + ".*", at + 2
        elif glob[at] == "*":
            found, at = found + "[^/]*", at + 1
        elif glob[at] == "?":
            found, at = found + "[^/]", at + 1
        else:
            found, at = found + re.escape(glob[at]), at + 1
    return re.compile(found, re.DOTALL)


class _Walk:
    """The regular files below a handle, in the order of their names, until the time is over."""

    def __init__(self, forbidden: set[tuple[int, int]], hidden: set[str], give_up_at: float) -> None:
        self._forbidden = forbidden
        self._hidden = hidden
        self._give_up_at = give_up_at
        self.files = 0
        self.stopped = False

    def below(self, folder: int, prefix: str = "", deep: int = 0) -> Iterator[tuple[str, int, str]]:
        """Path, open folder and name of each file."""
        try:
            handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            return
        try:
            with os.scandir(handle) as entries:
                found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
            for name, is_folder in found:
                if time.monotonic() > self._give_up_at:
                    self.stopped = True
                    return
                if name in _SKIPPED or name.startswith(".squidbot-"):
                    continue
                if not prefix and name.casefold() in self._hidden:
                    continue
                if is_folder:
                    if deep < 60:
                        yield from self._into(handle, name, f"{prefix}{name}/", deep)
                else:
                    self.files += 1
                    yield f"{prefix}{name}", handle, name
        except OSError:
            return
        finally:
            os.close(handle)

    def _into(self, folder: int, name: str, prefix: str, deep: int) -> Iterator[tuple[str, int, str]]:
        try:
            handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            return
        try:
            if identity_of(os.fstat(handle)) not in self._forbidden:
                yield from self.below(handle, prefix, deep + 1)
        finally:
            os.close(handle)


def search(asked: dict[str, Any], folder: int) -> Iterator[dict[str, Any]]:
    """Yield the hits, and at the end a summary."""
    flags = re.IGNORECASE if asked["ignore_case"] else 0
    pattern = re.compile(asked["pattern"], flags) if asked["pattern"] else None
    glob = glob_pattern(asked["glob"]) if asked["glob"] else None
    whole = "/" in (asked["glob"] or "")
    forbidden = {(device, inode) for device, inode in asked["forbidden"]}
    walk = _Walk(forbidden, set(asked["hidden"]), time.monotonic() + asked["seconds"])
    skipped, hits = 0, 0
    for path, here, name in walk.below(folder):
        if glob is not None and not glob.fullmatch(path if whole else name):
            continue
        if pattern is None:
            yield from _events(path, name, here)
            continue
        content = _content(name, here, forbidden)
        if content is None:
            skipped += 1
            continue
        lines = list(islice(_lines(content, pattern), asked["limit"] - hits))
        hits += len(lines)
        if lines:
            yield {"path": path, "digest": hashlib.sha256(content).hexdigest(), "lines": lines}
        if hits >= asked["limit"]:
            yield {"more": True}
            break
    yield {"done": True, "files": walk.files, "skipped": skipped, "stopped": walk.stopped}


def _events(path: str, name: str, folder: int) -> Iterator[dict[str, Any]]:
    with suppress(OSError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            yield {"path": path, "size": status.st_size, "changed": status.st_mtime}


def _lines(content: bytes, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The lines with a match, each with its number, as far as they are shown."""
    for number, line in enumerate(decode_text(content).splitlines(), 1):
        found = pattern.search(line[:10_000])
        if found is not None:
            start = max(0, min(found.start(), len(line) - _SHOWN_CHARS))
            yield number, line[start : start + _SHOWN_CHARS]


def _content(name: str, folder: int, forbidden: set[tuple[int, int]]) -> bytes | None:
    """A file that text may be in; None: it is none, or not to be read."""
    try:
        handle = os.open(name, READ, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or identity_of(status) in forbidden:
            return None
        if status.st_size > _MAX_FILE_BYTES:
            return None
        try:
            content = file.read(_MAX_FILE_BYTES)
        except OSError:
            return None
    return None if b"\0" in content[:8192] else content


def _main() -> None:
    asked = json.load(sys.stdin)
    seconds = int(asked["seconds"]) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(seconds + 3)  # ends it, also when nobody is left who would
    out = sys.stdout
    try:
        for found in search(asked, asked["folder"]):
            out.write(json.dumps(found) + "\n")
            out.flush()
    except (re.error, RecursionError, OverflowError) as error:
        out.write(json.dumps({"invalid": str(error)[:200]}) + "\n")
    except MemoryError:
        out.write('{"invalid": "it needs too much memory"}\n')
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
