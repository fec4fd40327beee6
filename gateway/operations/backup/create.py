"""
Creates a backup: one consistent file with everything, whether or not the daemon runs.

The file is a tar in gzip (and, if wished for, encrypted by `archive_encryption`)::

    squidbot-backup.json     the head: format, versions, the moment, what it was made of
    home/…                   the files
    manifest.json            the last: size and SHA-256 of each file

so anybody can look into it with ``tar tzvf``. It is written under a temporary name, synced and renamed: what
has the right name is whole. What is read in which order, and why that is consistent, is in
`gateway.operations.backup.contents` and `gateway.store.sqlite.sqlite_queue`.

The daemon makes nothing but the copy of its database, inside its home, because it alone may open that; the
rest is done by whoever makes the backup, who can also write where the daemon's sandbox does not let it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from agent_core.files import sync
from gateway.errors import GatewayError
from gateway.operations.backup.archive_encryption import EncryptingWriter
from gateway.operations.backup.contents import (
    CONFIG_NAME,
    DATABASE_NAME,
    BackupPart,
    BackupSelection,
    FoundFile,
)
from gateway.system.version import version_of

FORMAT = 1
HEAD_NAME = "squidbot-backup.json"
MANIFEST_NAME = "manifest.json"
PREFIX = "home/"
ENCRYPTED_SUFFIX = ".enc"
_OURS = re.compile(r"squidbot-\d{8}T\d{6}Z(?:-\d+)?\.tar\.gz(?:\.enc)?")
_PART = re.compile(r"\..+\.tar\.gz(?:\.enc)?\.\d+\.part")
_WHOLE_BYTES = 16 * 1024 * 1024
_BLOCK = 1024 * 1024


class BackupFailed(GatewayError):
    """The backup could not be made; no file was left behind."""

    exit_code = 73  # EX_CANTCREAT


@dataclass(frozen=True, slots=True)
class BackupSource:
    """
    The source of a backup.

    ``snapshot`` copies the database; ``config`` is the text to keep or None; ``facts`` extend the head;
    ``secrets`` are outside files, restored to the home's folder secrets.
    """

    choice: BackupSelection
    snapshot: Callable[[], dict[str, Any]]
    config: bytes | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedBackup:
    """A finished backup."""

    path: Path
    files: int
    content_bytes: int
    bytes: int
    seconds: float
    running: bool
    left_out: tuple[str, ...]


def backup_name(now: datetime, *, encrypted: bool) -> str:
    """The default name of a backup."""
    return f"squidbot-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.tar.gz{ENCRYPTED_SUFFIX if encrypted else ''}"


def make_folder(folder: Path) -> None:
    """Create the backup folder for its owner alone; the parent must exist. Raises BackupFailed."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise BackupFailed(f"the folder {folder} cannot be created: {error.strerror or error}") from error


def prune_backups(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest ``keep`` backups with default names; returns what was removed."""
    ours = sorted(path for path in folder.iterdir() if _OURS.fullmatch(path.name) and path.is_file())
    old = ours[: max(0, len(ours) - max(1, keep))]
    for path in old:
        path.unlink()
    return old


def make_backup(
    target: Path,
    source: BackupSource,
    *,
    now: datetime,
    passphrase: str | None = None,
    log_n: int | None = None,
) -> CreatedBackup:
    """Write a backup to a new file; ``log_n`` is the passphrase cost. Raises BackupFailed."""
    started = time.monotonic()
    if target.exists():
        raise BackupFailed(f"{target} exists already; a backup is never overwritten")
    making = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        _sweep(target.parent)
        with _new_file(making) as file:
            writing = _Writing(source, now)
            if passphrase is None:
                writing.run(file)
            else:
                writer = EncryptingWriter(file, passphrase, **({} if log_n is None else {"log_n": log_n}))
                writing.run(writer)  # type: ignore[arg-type]  # all that is asked of it is to take bytes
                writer.finish()
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        _name(making, target)
        sync(target.parent)
    except FileExistsError as error:
        raise BackupFailed(f"{target} exists already; a backup is never overwritten") from error
    except OSError as error:
        raise BackupFailed(
            f"the backup {target} cannot be written: {error.strerror or error} ({error.filename or target})"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            making.unlink()
    return CreatedBackup(
        target,
        len(writing.manifest),
        sum(entry["size"] for entry in writing.manifest.values()),
        size,
        time.monotonic() - started,
        writing.running,
        tuple(source.choice.left_out),
    )


def _sweep(folder: Path) -> None:
    """Remove what backups that were killed have left here; one that is being written is locked."""
    for path in folder.glob(".*.part"):
        if _PART.fullmatch(path.name):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with os.fdopen(handle, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb", buffering=_BLOCK) as file:
        with contextlib.suppress(OSError):  # a file system that cannot lock
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file


def _name(making: Path, target: Path) -> None:
    """Give the file its name, and never take one away from another file."""
    try:
        os.link(making, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; between this look and the rename is a moment
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        making.replace(target)


class _Writing:
    """One backup while it is written."""

    def __init__(self, source: BackupSource, now: datetime) -> None:
        self._source = source
        self._now = now
        self._tar: tarfile.TarFile
        self.manifest: dict[str, dict[str, Any]] = {}
        self.running = False

    def run(self, out: BinaryIO) -> None:
        with (
            gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=out, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            self._tar = tar
            self._put_bytes(HEAD_NAME, _json(self._head()), listed=False)
            for found in self._source.choice.files(BackupPart.EARLY):
                self._put(found)
            facts = self._put_database()
            for found in self._source.choice.files(BackupPart.HISTORIES, facts["lengths"]):
                self._put(found)
            for found in self._source.choice.files(BackupPart.LATE):
                self._put(found)
            for name, path in sorted(self._source.secrets.items()):
                if f"secrets/{name}" not in self.manifest:
                    self._put_bytes(f"secrets/{name}", path.read_bytes())
            if self._source.config is not None:
                self._put_bytes(CONFIG_NAME, self._source.config)
            about = {name: value for name, value in facts.items() if name not in ("lengths", "folder")}
            manifest = {"format": FORMAT, "files": self.manifest, "database": about}
            self._put_bytes(MANIFEST_NAME, _json(manifest), listed=False)

    def _head(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "program": "squidbot",
            "version": version_of("squidbot-gateway"),
            "made_at": self._now.astimezone(UTC).isoformat(),
            **self._source.facts,
        }

    def _put_database(self) -> dict[str, Any]:
        """Add the copy of the database, remove it, and return its facts."""
        answer = self._source.snapshot()
        folder = Path(answer["folder"])
        try:
            facts: dict[str, Any] = json.loads((folder / "facts.json").read_bytes())
            self.running = bool(facts["running"])
            self._put(FoundFile(DATABASE_NAME, folder / DATABASE_NAME))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return facts

    def _put(self, found: FoundFile) -> None:
        try:
            handle = os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            if found.limit is not None or found.name == DATABASE_NAME:
                raise
            return  # it was removed or replaced after it had been listed
        with os.fdopen(handle, "rb") as file:
            state = os.fstat(file.fileno())
            size = state.st_size if found.limit is None else found.limit
            if size <= _WHOLE_BYTES and found.limit is None:
                content = file.read(_WHOLE_BYTES + _BLOCK)
                self._add(found.name, io.BytesIO(content), len(content), state)
            else:
                self._add(found.name, file, size, state)

    def _put_bytes(self, name: str, data: bytes, *, listed: bool = True) -> None:
        self._add(name, io.BytesIO(data), len(data), None, listed=listed)

    def _add(
        self, name: str, content: BinaryIO, size: int, state: os.stat_result | None, *, listed: bool = True
    ) -> None:
        member = tarfile.TarInfo(f"{PREFIX}{name}" if listed else name)
        member.size = size
        member.mode = 0o700 if state is not None and state.st_mode & 0o100 else 0o600
        member.mtime = int(state.st_mtime if state is not None else self._now.timestamp())
        hashed = _Hashed(content, size, name)
        self._tar.addfile(member, hashed)  # type: ignore[arg-type]  # it only reads
        if listed:
            self.manifest[name] = {"size": size, "sha256": hashed.hash.hexdigest()}


class _Hashed:
    """Reads exactly so many bytes, and knows their hash."""

    def __init__(self, content: BinaryIO, size: int, name: str) -> None:
        self._content = content
        self._left = size
        self._name = name
        self.hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Some bytes, as many as asked for unless there are no more."""
        data = self._content.read(min(size, self._left))
        if len(data) < min(size, self._left):
            raise BackupFailed(f"{self._name} became shorter while it was read; try again")
        self._left -= len(data)
        self.hash.update(data)
        return data


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=True).encode()
