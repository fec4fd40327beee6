"""
What of a home folder goes into a backup, in which order, and which backups exist (``state/backups.jsonl``, a
hint). The order keeps a backup of a running daemon consistent: ``EARLY`` cursors and summaries, the database
with the histories' lengths, ``HISTORIES`` up to those, ``LATE`` all else. Left out: caches, logs, and the
keys of a Matrix device, as two machines with one device break each other's encryption.
"""

from __future__ import annotations

import fnmatch
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path

CONFIG_NAME = "squidbot.yaml"
DATABASE_NAME = "gateway.db"
_DEVICE_FILES = ("pickle_key", "crypto-*", "session.json", "cross_signing.json", "verified.json")
_TOKEN_FILES = ("*/oauth.json", "mcp/*.login", "mcp/*.told", "state-key")
"""In the folder ``state``: logins, that somebody was told of one that is needed, the key for a database."""
_MAX_NESTED, _MAX_PATH, _MAX_SHOWN = 100, 3800, 200
_MAX_HOLES = 1_000_000_000
"""Bytes of holes in all files together: they take no space on the disk, and as long to read as data."""
_TEMPORARY = ("*.tmp", "*.new", "*.next", "*.try")
_MARK = "gateway-db.json"
_LAST_GOOD = "last-good.yaml"
"""A copy of the configuration, which goes into a backup by itself, without its secrets."""


class BackupPart(Enum):
    """The moment at which a file is read; see the module."""

    EARLY = 1
    HISTORIES = 2
    LATE = 3


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file: its name in the backup, its path, and how much of it counts (None: all)."""

    name: str
    path: Path
    limit: int | None = None


@dataclass(slots=True)
class BackupSelection:
    """Chooses the files of one home, ``with_secrets`` also pure secret files."""

    root: Path
    workspace: Path
    with_secrets: bool = False
    left_out: list[str] = field(default_factory=list, init=False)
    _holes: int = field(default=0, init=False)

    def files(self, part: BackupPart, lengths: Mapping[str, int] | None = None) -> Iterator[FoundFile]:
        """The files of one part, as they are at this moment."""
        match part:
            case BackupPart.EARLY:
                yield from self._early()
            case BackupPart.HISTORIES:
                for name in sorted(lengths or {}):
                    yield FoundFile(f"sessions/{name}", self.root / "sessions" / name, (lengths or {})[name])
            case BackupPart.LATE:
                yield from self._late()

    def _early(self) -> Iterator[FoundFile]:
        for path in _listed(self.root / "sessions"):
            if ".meta.json" in path.name:
                yield from self._file(path, f"sessions/{path.name}")
        for folder in _listed(self.root / "memory"):
            yield from self._file(folder / "summary.md", f"memory/{folder.name}/summary.md")

    def _late(self) -> Iterator[FoundFile]:
        memory = [
            found
            for found in self._below(self.root / "memory", "memory")
            if found.name.count("/") != 2 or found.path.name != "summary.md"
        ]
        versions = [found for found in memory if found.path.name.endswith(".history.jsonl")]
        yield from versions
        yield from (found for found in memory if found not in versions)
        yield from self._below(self.workspace, "workspace")
        yield from self._below(self.root / "attachments", "attachments", leave=("tmp",))
        yield from self._below(self.root / "state", "state")
        if self.with_secrets:
            yield from self._below(self.root / "secrets", "secrets")

    def _below(
        self, folder: Path, name: str, leave: tuple[str, ...] = (), depth: int = 0
    ) -> Iterator[FoundFile]:
        """Find the files below a folder. Refuses folders nested deeper than paths or unpackers can go."""
        for path in _listed(folder):
            inside = f"{name}/{path.name}"
            if depth > _MAX_NESTED or len(os.fsencode(path)) > _MAX_PATH:
                self.left_out.append(f"{inside[:_MAX_SHOWN]}… (nested too deeply)")
                return
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                if path.name not in leave and path != self.root:
                    yield from self._below(path, inside, depth=depth + 1)
            else:
                yield from self._file(path, inside)

    def _file(self, path: Path, name: str) -> Iterator[FoundFile]:
        try:
            state = path.lstat()
        except FileNotFoundError:
            return
        mode = state.st_mode
        if stat.S_ISDIR(mode) or self._may_leave_out(name):
            return
        if not stat.S_ISREG(mode):
            self.left_out.append(f"{name} (a link or a special file)")
            return
        if state.st_blocks * 512 < state.st_size:
            room = _MAX_HOLES - self._holes
            holes = _holes_in(path, room)
            if holes > room:
                self.left_out.append(f"{name} (it is {state.st_size / 1e9:.1f} GB long and mostly empty)")
                return
            self._holes += holes
        yield FoundFile(name, path)

    def _may_leave_out(self, name: str) -> bool:
        top, _, rest = name.partition("/")
        last = rest.rpartition("/")[2]
        if top == "state":
            secret = (_any(rest, _TOKEN_FILES) or rest == _LAST_GOOD) and not self.with_secrets
            return rest == _MARK or secret or _any(last, (*_DEVICE_FILES, *_TEMPORARY))
        return top in ("sessions", "memory") and _any(last, _TEMPORARY)


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _holes_in(path: Path, most: int) -> int:
    """Return the bytes of holes in a file, counted until they are more than ``most``."""
    holes = end = 0
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        size = os.fstat(handle).st_size
        while holes <= most and (hole := os.lseek(handle, end, os.SEEK_HOLE)) < size:
            try:
                end = os.lseek(handle, hole, os.SEEK_DATA)
            except OSError:  # there are no more data behind it
                return holes + size - hole
            holes += end - hole
        return holes
    except OSError:  # a file system that knows no holes, or a file that was cut meanwhile
        return holes
    finally:
        os.close(handle)


def _listed(folder: Path) -> list[Path]:
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as found:
            return sorted(Path(entry.path) for entry in found)
    except (FileNotFoundError, NotADirectoryError):
        return []


_NAME = "backups.jsonl"
_MOST = 1000


def note_backup(root: Path, path: Path, *, now: datetime) -> None:
    """Note a backup, if possible; entries of backups that are gone are removed."""
    lines = [(at, old) for at, old in known_backups(root) if old != path]
    lines.append((now.isoformat(), path))
    place = root / "state" / _NAME
    new = place.with_name(f"{_NAME}.{os.getpid()}.new")
    with suppress(OSError):
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            owner = root.stat()
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.writelines(json.dumps({"at": at, "path": str(old)}) + "\n" for at, old in lines[-_MOST:])
        new.replace(place)


def known_backups(root: Path) -> list[tuple[str, Path]]:
    """The existing backups of this home with their times, oldest first."""
    found: list[tuple[str, Path]] = []
    with suppress(OSError):
        for line in (
            (root / "state" / _NAME).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        ):
            with suppress(ValueError, KeyError, TypeError):
                value = json.loads(line)
                path = Path(value["path"])
                if path.exists():
                    found.append((str(value["at"]), path))
    return found
