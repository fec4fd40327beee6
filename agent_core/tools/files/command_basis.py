"""
Determines the state of the files that a command can read, for which an approval of the command is given. An
approval of ``sh run.sh`` is one of its content. So the question shows the files that the command names, and
one state stands for everything in the workspace, and for what is named by its whole path elsewhere: a change
of any of it voids the approval. Past the bound only files that are named count, and the question says so.
Blocks.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent_core.confined_files import open_below
from agent_core.text import decode_text
from agent_core.tools.files.change_journal import WORK
from agent_core.tools.files.command_origins import CommandFiles
from agent_core.tools.files.workspace_contents import TooMuchError, digest_of_file

_SHOWN_BYTES = 20_000
_MAX_SHOWN = 20
_BETWEEN = re.compile(r"[\s;&|<>()'\"`=:,@\\]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_QUOTED = re.compile(r"['\"]")
_QUOTES = str.maketrans("", "", "'\"\\")
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


def basis_of(files: CommandFiles, command: str) -> Basis:
    """
    Return the state of what a command started in ``work/`` can read.

    Files of further readable folders count only if the command names them by their whole path, or a link in
    the workspace leads there. Logs of background commands, which grow while these run, count only if it names
    them or their folder.
    """
    paths = set(_paths(command))
    words = {part for path in paths for part in path.split("/")}
    contents = files.contents()
    left = [0, 1_000_000_000]
    found = dict(_named_whole(files, paths, left, inside=contents is None))
    for path, content in (contents or {}).items():
        if not _is_log(path) or words.intersection(("jobs", _name(path))):
            found[path] = content.identity
            if content.identity.startswith("link "):
                found[path] += _digest(os.path.realpath(f"{files.workspace}/{path}"), left)
    unknown = _UNKNOWN if contents is None else ""
    state = hashlib.sha256(repr((unknown, sorted(found.items()))).encode("utf-8", "surrogatepass"))
    named = {path: each for path, each in sorted(found.items()) if path[0] == "/" or _name(path) in words}
    return Basis(state.hexdigest(), tuple(_shown(files.workspace, named)), unknown)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _is_log(path: str) -> bool:
    return path == f"{WORK}/jobs" or (path.startswith(f"{WORK}/jobs/") and path.endswith(".log"))


def _paths(command: str) -> Iterator[str]:
    """Yield possible paths in a command: words, quoted texts, and both from the first ``/`` on."""
    for text in (command, command.translate(_QUOTES)):
        for word in (*_BETWEEN.split(text), *_QUOTED.split(text)):
            yield word
            yield "".join(word.partition("/")[1:])


def _named_whole(
    files: CommandFiles, paths: Iterable[str], left: list[int], *, inside: bool
) -> Iterator[tuple[str, str]]:
    """The files of further folders, or ``inside`` the workspace as well, whose whole path stands there."""
    workspace = f"{files.workspace}/"
    tops = (*(f"{top.rstrip('/')}/" for top in files.outside), *([workspace] if inside else []))
    for path in paths:
        full = os.path.normpath(os.path.join(workspace, WORK, path))  # noqa: PTH118 - pure
        with suppress(OSError, ValueError):
            if full.startswith(tops) and not os.path.isdir(full):  # noqa: PTH112
                status, real = os.stat(full, follow_symlinks=False), os.path.realpath(full)  # noqa: PTH116
                identity = _digest(real, left) or f"{status.st_ino} {status.st_size} {status.st_ctime_ns}"
                yield full.removeprefix(workspace), identity if real == full else f"link {real} {identity}"


def _digest(path: str, left: list[int]) -> str:
    try:
        return digest_of_file(path, left)
    except TooMuchError:
        return ""


def _shown(workspace: str, named: Mapping[str, str]) -> Iterator[str]:
    regular = {path: digest for path, digest in named.items() if _SHA256.fullmatch(digest)}
    for path, digest in islice(regular.items(), _MAX_SHOWN):
        size, content = _read(workspace, path)
        yield f"{path if path.isprintable() else ascii(path)}, {size} bytes, SHA-256 {digest}"
        # What is shown must be what the hash is of.
        if content and b"\0" not in content and hashlib.sha256(content).hexdigest() == digest:
            yield "\n".join(f"| {line}" for line in decode_text(content).rstrip("\n").split("\n"))
    if len(regular) > _MAX_SHOWN:
        yield f"and {len(regular) - _MAX_SHOWN} more files"


def _read(workspace: str, path: str) -> tuple[int, bytes]:
    """Return the size of a file, and its content if it is short and in the workspace."""
    with suppress(LookupError, ValueError, OSError):
        if path.startswith("/"):
            return os.stat(path, follow_symlinks=False).st_size, b""  # noqa: PTH116
        with os.fdopen(open_below(Path(workspace), path), "rb") as file:
            return os.fstat(file.fileno()).st_size, file.read(_SHOWN_BYTES + 1)
    return 0, b""
