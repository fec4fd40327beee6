"""
Determines the state of the files that a command can read, for which an approval of the command is given. An
approval of ``sh run.sh`` is one of its content. So the question shows the files that the command names, and
one state stands for everything in the workspace, and for what is named by its whole path elsewhere: a change
of any of it voids the approval. Past the bound only files named by whole path count, and the question says
so. Blocks.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent_core.confined_files import open_below
from agent_core.text import decode_text
from agent_core.tools.files.change_journal import WORK
from agent_core.tools.files.command_origins import TooMuchError, identity_of_file, walk

_MOST_ENTRIES = 20_000
_MOST_HASHED_BYTES = 1_000_000_000
_SHOWN_BYTES = 20_000
_MOST_SHOWN = 20
_BETWEEN = re.compile(r"[\s;&|<>()'\"`=:,@/\\]+")
_BETWEEN_PATHS = (re.compile(r"[\s;&|<>()'\"`=:,@]+"), re.compile("['\"]+"), re.compile(r"\s+"))
_QUOTES = str.maketrans("", "", "'\"\\")
_LETTERS_OF_OPTION = range(2, 12)
"""In ``-fFILE`` or ``-nfFILE`` a file may begin behind so many characters."""
_UNKNOWN = (
    "Not all files of the workspace could be examined, so it is not fully known what the command runs: "
    "files that it does not name by their full path may still change."
)


class Basis(NamedTuple):
    """
    ``state`` stands for all that the command can read; ``shown`` describes the files that it names;
    ``unknown`` says why that is not all, if it is not.
    """

    state: str
    shown: Sequence[str]
    unknown: str = ""


class _Entry(NamedTuple):
    """A file or a folder ``path`` below ``top``; ``inside`` of the workspace."""

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

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


def basis_of(workspace: str, command: str, outside: Sequence[str] = ()) -> Basis:
    """
    Return the state of what a command started in ``work/`` can read.

    ``outside`` are further readable folders; their files count only if the command names them by their whole
    path. Logs of background commands, which grow while these run, count only if it names their folder.
    """
    whole = {entry.name: entry for entry in _named_whole(workspace, command, outside)}
    words = _words(command)
    unknown = ""
    try:
        entries = {
            path: _Entry(workspace, path, status, inside=True)
            for path, status in walk(workspace, [_MOST_ENTRIES], with_skills=True)
            if not _is_log(path) or "jobs" in words or _is_named(path, words)
        } | whole
    except (TooMuchError, OSError):
        entries, unknown = whole, _UNKNOWN
    named = {path for path, entry in entries.items() if not entry.inside or _is_named(path, words)}
    left = [_MOST_ENTRIES, _MOST_HASHED_BYTES]
    found = {path: _identity(entries[path], left) for path in sorted(entries)}
    state = hashlib.sha256(repr((unknown, list(found.items()))).encode("utf-8", "surrogatepass")).hexdigest()
    return Basis(state, tuple(_shown(sorted(named), entries, found)), unknown)


def _is_log(path: str) -> bool:
    return path == f"{WORK}/jobs" or (path.startswith(f"{WORK}/jobs/") and path.endswith(".log"))


def _named_whole(workspace: str, command: str, outside: Sequence[str]) -> Iterator[_Entry]:
    """The files whose whole path stands in the command, as a word or between quotation marks."""
    texts = (command, command.translate(_QUOTES))
    for word in {
        word
        for text in texts
        for between in _BETWEEN_PATHS
        for each in between.split(text)
        for word in _behind_option(each)
    }:
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
    texts = (text, text.translate(_QUOTES))
    return {word for text in texts for each in _BETWEEN.split(text) for word in _behind_option(each)}


def _behind_option(word: str) -> Iterator[str]:
    """A word, and what may be a file in it if it is an option."""
    if word:
        yield word
    if word.startswith("-"):
        yield from (word[letters:] for letters in _LETTERS_OF_OPTION if letters < len(word))


def _is_named(path: str, words: set[str]) -> bool:
    """Return True if a text with these words can name this path; one elsewhere may have the same name."""
    if path == WORK:
        return False  # a part of any whole path
    return words.issuperset(word for word in _BETWEEN.split(path.rpartition("/")[2]) if word)


def _identity(entry: _Entry, left: list[int]) -> str:
    if entry.is_folder:
        return ""
    full, link, known = entry.full, "", ""
    if stat.S_ISLNK(entry.status.st_mode):
        with suppress(OSError):
            link, full = f"link {os.readlink(full)} ", os.path.realpath(full)  # noqa: PTH115
    with suppress(TooMuchError, OSError):
        known = "" if os.path.isdir(full) else identity_of_file(full, left)  # noqa: PTH112
    if not known and not link:
        known = repr((entry.status.st_ino, entry.status.st_size, entry.status.st_ctime_ns))
    return link + known


def _shown(named: Sequence[str], entries: Mapping[str, _Entry], found: dict[str, str]) -> Iterator[str]:
    regular = [path for path in named if stat.S_ISREG(entries[path].status.st_mode)]
    for path in regular[:_MOST_SHOWN]:
        entry = entries[path]
        shown = path if path.isprintable() else ascii(path)
        yield f"{shown}, {entry.status.st_size} bytes, SHA-256 {found[path]}"
        if entry.inside and 0 < entry.status.st_size <= _SHOWN_BYTES:
            content = _content(entry, _SHOWN_BYTES) or b""
            # What is shown must be what the hash is of.
            if b"\0" not in content and hashlib.sha256(content).hexdigest() == found[path]:
                lines = decode_text(content).rstrip("\n").split("\n")
                yield "\n".join(f"| {line}" for line in lines)
    if len(regular) > _MOST_SHOWN:
        yield f"and {len(regular) - _MOST_SHOWN} more files"


def _content(entry: _Entry, most: int) -> bytes | None:
    """Read a regular file; b"" for another kind, None if it has more than ``most`` bytes."""
    if not stat.S_ISREG(entry.status.st_mode):
        return b""
    try:
        handle = open_below(Path(entry.top), entry.path)
    except (LookupError, ValueError, OSError):
        return b""
    with os.fdopen(handle, "rb") as file, suppress(OSError):
        content = file.read(most + 1)
        return content if len(content) <= most else None
    return b""
