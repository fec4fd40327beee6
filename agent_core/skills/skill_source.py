"""
Reads a skill as a whole from a folder or an archive (zip, tar, tar.gz), without trusting it. Nothing is
unpacked: the files come as bytes, bounded in number and size before they are read. Names that leave the
skill, that differ only by case or by how Unicode writes them, links and devices are refused; hidden names and
caches are left out. Blocks.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import starmap
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from unicodedata import category, normalize

from agent_core.confined_files import open_below, parts_of
from agent_core.errors import SkillInvalid

SKILL_FILE = "SKILL.md"
MAX_FILES = 500
MAX_BYTES = 16 * 1024 * 1024
"""Of all files of a skill together, and of an archive."""
_MAX_ENTRIES = 5_000
_COMMIT = re.compile(r"[0-9a-f]{40,64}")

SkillFiles = Mapping[str, bytes]
"""The files of a skill by their path in its folder."""


class _Entry(NamedTuple):
    """Something in a source. ``read`` returns at most one byte more than it is given; None: no file."""

    name: str
    read: Callable[[int], bytes] | None


class FoundSkill(NamedTuple):
    """A skill in a source: its place there, its files, and the names that were left out."""

    place: str
    files: SkillFiles
    left_out: tuple[str, ...] = ()


def digest_of(files: SkillFiles) -> str:
    """The SHA-256 of the lines that ``sha256sum`` prints for all files, sorted by path."""
    lines = (f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def fold_name(name: str) -> str:
    """A name as a disk may compare it that ignores case and ways of writing."""
    return normalize("NFKC", normalize("NFKC", name).casefold())


def read_skill_folder(folder: Path) -> FoundSkill:
    """Read the skill that is this folder. Raises SkillInvalid or OSError."""
    return _collect(_entries_of_folder(folder), "")


def list_skill_files(folder: Path) -> list[str]:
    """The names of the files of a skill, sorted. Raises SkillInvalid or OSError."""
    names = (entry.name for entry in _entries_of_folder(folder) if entry.read)
    return sorted(name for name in names if not is_left_out(tuple(name.split("/"))))


def signature_of(folder: Path) -> tuple[object, ...]:
    """The marks of all that lies in a folder, which any change changes. Raises SkillInvalid or OSError."""
    found = []
    for entry in _entries_of_folder(folder):
        state = (folder / entry.name).lstat()
        found.append((entry.name, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    return tuple(sorted(found))


def read_source(source: Path, name: str = "") -> FoundSkill:
    """Read a skill of a folder or an archive, of several the one ``name``. Raises SkillInvalid, OSError."""
    if source.is_dir():
        return _read_one(partial(_entries_of_folder, source), name)
    whole = source.resolve(strict=True)
    return read_archive(_read_below(whole.parent, whole.name, MAX_BYTES), name)


def read_archive(content: bytes, name: str = "") -> FoundSkill:
    """Read a skill of an archive, of several the one ``name``. Raises SkillInvalid."""
    if len(content) > MAX_BYTES:
        raise SkillInvalid(f"the archive has more than {MAX_BYTES:,} bytes")
    return _read_one(partial(_entries_of_archive, content), name)


def _read_one(entries: Callable[[], Iterator[_Entry]], name: str) -> FoundSkill:
    with _refuse_damage():
        places = _places(_parts(entry.name) for entry in entries() if entry.read)
        chosen = [each for each in places if name in ("", PurePosixPath(each).name)]
        if len(chosen) != 1:
            known = ", ".join(PurePosixPath(each).name for each in places[:20])
            raise SkillInvalid(
                f"it holds several skills: {known}. Choose one with --name"
                if known
                else f"there is no {SKILL_FILE} in it"
            )
        return _collect(entries(), chosen[0])


def source_label(source: Path | str) -> str:
    """The source for people: its address, or its path, and of a git checkout the commit."""
    if isinstance(source, str):
        return source
    for folder in (source, *source.parents):
        git = folder / ".git"
        if git.is_dir():
            return f"{source} (git {_commit(git)})"
    return str(source)


# ── inside ──


def _places(files: Iterator[tuple[str, ...]]) -> list[str]:
    """The folders with a SKILL.md that lie in no other such folder, in their order."""
    found = {parts[:-1] for parts in files if parts[-1] == SKILL_FILE and not is_left_out(parts)}
    tops: list[tuple[str, ...]] = []
    for each in sorted(found, key=len):
        if not any(each[: len(top)] == top for top in tops):
            tops.append(each)
    return ["/".join(each) for each in sorted(tops)]


def _collect(entries: Iterator[_Entry], place: str) -> FoundSkill:
    """Read what lies below a place. Raises SkillInvalid for what a skill may not hold."""
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    top, left = tuple(place.split("/")) if place else (), MAX_BYTES
    for entry in entries:
        parts = _parts(entry.name)
        if parts[: len(top)] != top or len(parts) == len(top):
            continue
        inside = "/".join(parts[len(top) :])
        if is_left_out(parts[len(top) :]):
            left_out.append(inside)
            continue
        if entry.read is None:
            raise SkillInvalid(f"it contains {inside!r}, which is a link or a special file")
        if len(files) == MAX_FILES:
            raise SkillInvalid(f"it has more than {MAX_FILES} files")
        if inside in files:
            raise SkillInvalid(f"it contains {inside!r} twice")
        files[inside] = entry.read(left)
        left -= len(files[inside])
        if left < 0:
            raise SkillInvalid(f"its files have more than {MAX_BYTES:,} bytes")
    if SKILL_FILE not in files:
        raise SkillInvalid(f"there is no {SKILL_FILE} in it")
    _refuse_namesakes(files)
    return FoundSkill(place, files, tuple(left_out))


def _refuse_namesakes(files: SkillFiles) -> None:
    """Refuse names, of folders too, that are one on a disk which ignores case. Raises SkillInvalid."""
    known: dict[str, str] = {}
    for name in files:
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if known.setdefault(fold_name(path), path) != path:
                raise SkillInvalid(f"{known[fold_name(path)]!r} and {path!r} are one name on some disks")
    if clash := next((name for name in files if any(other.startswith(f"{name}/") for other in files)), None):
        raise SkillInvalid(f"{clash!r} is a file and a folder")


def _parts(name: str) -> tuple[str, ...]:
    """The parts of a name in a source. Raises SkillInvalid if it leads out of it or cannot be shown."""
    try:
        parts = parts_of(name.removeprefix("./").rstrip("/") or "/")
    except ValueError as error:
        raise SkillInvalid(f"it contains {name[:200]!r}: {error}") from error
    if "\\" in name or any(category(char)[0] == "C" or char in "\u2028\u2029" for char in name):
        raise SkillInvalid(f"it contains the name {name[:200]!a}, with a character that names may not have")
    return parts


def is_left_out(parts: Sequence[str]) -> bool:
    """Return True for a hidden path and for caches, which are no part of a skill."""
    return any(part.startswith(".") or part in ("__pycache__", "__MACOSX") for part in parts)


def _entries_of_folder(top: Path) -> Iterator[_Entry]:
    """The files below a folder, and the names of what is hidden; no link is followed."""
    waiting, count = [""], 0
    while waiting:
        here = waiting.pop()
        with os.scandir(top / here) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                count += 1
                name = f"{here}{entry.name}"
                if count > _MAX_ENTRIES or name.count("/") > 8:
                    raise SkillInvalid("it holds too many files or folders; name the folder of the skill")
                if entry.is_dir(follow_symlinks=False) and not is_left_out((entry.name,)):
                    waiting.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield _Entry(name, partial(_read_below, top, name))
                else:
                    yield _Entry(name, None)


def _read_below(top: Path, name: str, most: int) -> bytes:
    try:
        handle = open_below(top, name)
    except (LookupError, ValueError) as error:
        raise SkillInvalid(f"{name!r} cannot be read: {error}") from error
    with os.fdopen(handle, "rb") as file:
        return file.read(most + 1)


def _entries_of_archive(content: bytes) -> Iterator[_Entry]:
    from agent_core.skills.skill_archives import entries_of_archive  # noqa: PLC0415 - hardly ever needed

    return starmap(_Entry, entries_of_archive(content, _MAX_ENTRIES))


@contextmanager
def _refuse_damage() -> Iterator[None]:
    """Turn what is wrong in a source into SkillInvalid: for crafted files libraries raise many kinds."""
    try:
        yield
    except (SkillInvalid, OSError):
        raise
    except Exception as error:
        raise SkillInvalid(f"it is damaged, or no archive of a kind that is known ({error})"[:300]) from error


def _commit(git: Path) -> str:
    """The commit of a checkout, read without running git, whose settings a stranger may have written."""
    head = _git_line(git, "HEAD")
    head = _git_line(git, head.removeprefix("ref: ")) if head.startswith("ref: ") else head
    return head[:12] if _COMMIT.fullmatch(head) else "without a commit"


def _git_line(git: Path, name: str) -> str:
    with suppress(SkillInvalid, OSError):
        return _read_below(git, name, 1000).decode("ascii", "replace").strip()
    return ""
