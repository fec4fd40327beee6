"""
What a command is based on: the files of the workspace that it runs, as far as that can be known beforehand.

Somebody who says yes to ``sh run.sh`` says yes to what stands in ``run.sh``. So the question shows the files
that the command names, and all that it can be expected to run stands for one state: what the command names,
what looks like a program, and what is named in one of these. If that state changes, the yes was for something
else. A command with a pattern or a variable in it may name anything, so everything counts. Data that a
program finds by itself, and that is named nowhere, may change. Everything here blocks.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent_core.confined import open_below
from agent_core.tools.files.commands import WORK, TooMuchError, identity_of_file, walked

__all__ = ["Basis", "basis_of"]

_MOST_ENTRIES = 20_000
_MOST_HASHED_BYTES = 1_000_000_000
_MOST_READ_BYTES = 5_000_000
_LARGEST_SCRIPT = 200_000
_SHOWN_BYTES = 20_000
_MOST_SHOWN = 20
_MOST_ROUNDS = 20
_ANYTHING = re.compile(r"[*?\[$`~]")
_BETWEEN = re.compile(r"[\s;&|<>()'\"`=:,/\\]+")
_QUOTES = str.maketrans("", "", "'\"\\")
_OUTPUT = re.compile(rf"{WORK}/jobs/[^/]*\.log")
"""What background commands say meanwhile."""
_PROGRAM = re.compile(
    r"(?i).*\.(sh|bash|zsh|fish|py|pyc|pyw|pl|pm|rb|lua|js|mjs|cjs|ts|php|awk|sed|r|jl|tcl|mk|cmake|gradle|ninja"
    r"|exe|so|jar|class|wasm|toml|cfg|ini|gemspec)"
    r"|(gnu)?makefile|dockerfile|justfile|rakefile|gemfile|package\.json|\..*rc|\.env"
)


class Basis(NamedTuple):
    """``state`` stands for all that the command is based on; ``shown`` describes the files that it names."""

    state: str
    shown: Sequence[str]


class _Entry(NamedTuple):
    """A file ``path`` below ``top``; ``inside`` of the workspace."""

    top: str
    path: str
    status: os.stat_result
    inside: bool

    @property
    def full(self) -> str:
        return f"{self.top}/{self.path}"

    @property
    def name(self) -> str:
        return self.path if self.inside else self.full


def basis_of(workspace: str, command: str, outside: Sequence[str] = ()) -> Basis:
    """
    What a command that begins in ``work/`` of a workspace is based on.

    ``outside`` are further folders that it may read; of these only the files count that it names whole.
    """
    entries = {
        entry.name: entry for entry in (*_inside(workspace), *_named_whole(workspace, command, outside))
    }
    words, left = _words(command), [_MOST_ENTRIES, _MOST_HASHED_BYTES]
    named = [path for path in sorted(entries) if not entries[path].inside or _is_named(path, words)]
    everything = _ANYTHING.search(command) is not None
    covered = {
        path
        for path, entry in entries.items()
        if path in named or _is_program(entry) or (everything and not _OUTPUT.fullmatch(path))
    }
    covered |= _named_in(covered, entries)
    found = [(path, _identity(entries[path], left)) for path in sorted(covered)]
    state = hashlib.sha256(repr(found).encode("utf-8", "surrogatepass")).hexdigest()
    return Basis(state, tuple(_shown(named, entries, dict(found))))


def _inside(workspace: str) -> Iterator[_Entry]:
    try:
        for path, status in walked(workspace, [_MOST_ENTRIES]):
            if not stat.S_ISDIR(status.st_mode):
                yield _Entry(workspace, path, status, inside=True)
    except (TooMuchError, OSError):
        return  # what was found counts, and what the command names whole


def _named_whole(workspace: str, command: str, outside: Sequence[str]) -> Iterator[_Entry]:
    """The files whose whole path is a word of the command."""
    for word in command.translate(_QUOTES).split():
        full = os.path.normpath(f"{workspace}/{WORK}/{word}" if not word.startswith("/") else word)
        tops = (top.rstrip("/") for top in (workspace, *outside))
        top = next((top for top in tops if full.startswith(f"{top}/")), None)
        if top is None or full == top:
            continue
        with suppress(OSError, ValueError):
            status = os.stat(full, follow_symlinks=False)  # noqa: PTH116
            if not stat.S_ISDIR(status.st_mode):
                yield _Entry(top, full[len(top) + 1 :], status, inside=top == workspace)


def _words(text: str) -> set[str]:
    return {word for each in (text, text.translate(_QUOTES)) for word in _BETWEEN.split(each) if word}


def _is_named(path: str, words: set[str]) -> bool:
    """Whether a text of these words can name a file; it may be one of the same name elsewhere."""
    return words.issuperset(word for word in _BETWEEN.split(path.rpartition("/")[2]) if word)


def _is_program(entry: _Entry) -> bool:
    runs = stat.S_ISREG(entry.status.st_mode) and entry.status.st_mode & 0o111 != 0
    return runs or _PROGRAM.fullmatch(entry.path.rpartition("/")[2]) is not None


def _named_in(covered: Iterable[str], entries: dict[str, _Entry]) -> set[str]:
    """What the scripts among these name, and what that names."""
    words: set[str] = set()
    left, waiting, found = _MOST_READ_BYTES, list(covered), set(covered)
    for _ in range(_MOST_ROUNDS):
        for path in waiting:
            text = _read(entries[path], min(_LARGEST_SCRIPT, left))
            left -= len(text)
            words |= _words(text.decode("utf-8", "replace"))
        waiting = [path for path in entries if path not in found and _is_named(path, words)]
        if not waiting:
            return found
        found.update(waiting)
    return set(entries)


def _identity(entry: _Entry, left: list[int]) -> str:
    if stat.S_ISLNK(entry.status.st_mode):
        with suppress(OSError):
            return "link " + os.fsdecode(os.readlink(entry.full))  # noqa: PTH115
        return ""
    known = ""
    with suppress(TooMuchError):
        known = identity_of_file(entry.full, left)
    return known or repr((entry.status.st_ino, entry.status.st_size, entry.status.st_ctime_ns))


def _shown(named: Sequence[str], entries: dict[str, _Entry], found: dict[str, str]) -> Iterator[str]:
    regular = [path for path in named if stat.S_ISREG(entries[path].status.st_mode)]
    for path in regular[:_MOST_SHOWN]:
        entry = entries[path]
        shown = path if path.isprintable() else ascii(path)
        yield f"{shown}, {entry.status.st_size} bytes, SHA-256 {found[path]}"
        if entry.inside and 0 < entry.status.st_size <= _SHOWN_BYTES:
            content = _read(entry, _SHOWN_BYTES)
            # What is shown must be what the hash is of.
            if b"\0" not in content and hashlib.sha256(content).hexdigest() == found[path]:
                lines = content.decode("utf-8", "replace").rstrip("\n").split("\n")
                yield "\n".join(f"| {line}" for line in lines)
    if len(regular) > _MOST_SHOWN:
        yield f"and {len(regular) - _MOST_SHOWN} more files"


def _read(entry: _Entry, most: int) -> bytes:
    """The content of a regular file of at most so many bytes, else nothing."""
    try:
        handle = open_below(Path(entry.top), entry.path)
    except (LookupError, ValueError, OSError):
        return b""
    with os.fdopen(handle, "rb") as file, suppress(OSError):
        content = file.read(most + 1)
        return content if len(content) <= most else b""
    return b""
