"""
Reads a backup without trusting it: checks names, kinds, sizes and checksums first. `members` gives each
member as it comes, so that nothing is held in memory; `verify_backup` compares all of them with the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from gateway.errors import GatewayError
from gateway.operations.backup.archive_encryption import MAGIC, DecryptingReader, is_encrypted
from gateway.operations.backup.contents import CONFIG_NAME, DATABASE_NAME
from gateway.operations.backup.create import FORMAT, HEAD_NAME, MANIFEST_NAME, PREFIX
from gateway.system.terminal_text import plain_line

_TOPS = frozenset(
    {DATABASE_NAME, CONFIG_NAME, "sessions", "memory", "workspace", "attachments", "state", "secrets"}
)
_MAX_FILES = 500_000  # so many names fit into the listing
_MAX_VALUES = 10_000
"""In a listing besides those of the files: each takes many times its bytes in memory."""
_YEARS = range(2000, 3000)
_MAX_PART = 255
_BLOCK = 1024 * 1024
_Kind = TypeVar("_Kind", dict[str, Any], list[Any])
_HEADER_BYTES = 64 * 1024
_KINDS = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.XHDTYPE)


class BackupRefused(GatewayError):
    """The file is damaged or is not a backup. Nothing was changed."""

    exit_code = 65  # EX_DATAERR


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """The content of a backup; every byte was compared with its manifest."""

    head: dict[str, Any]
    files: dict[str, dict[str, Any]]
    database: dict[str, Any]

    @property
    def made_at(self) -> datetime:
        """The moment of the backup."""
        return datetime.fromisoformat(self.head["made_at"])

    @property
    def bytes(self) -> int:
        """The size of its content."""
        return sum(entry["size"] for entry in self.files.values())


class _Member(tarfile.TarInfo):
    """A member whose header was looked at before anything was made of it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header; refuse members that no backup has before a long one is read into memory."""
        found = super().frombuf(buf, encoding, errors)
        if found.type not in _KINDS:
            raise BackupRefused(f"it contains {found.name[:200]!r}, which is not a file")
        if found.type == tarfile.XHDTYPE and found.size > _HEADER_BYTES:
            raise BackupRefused("it contains a name that is too long")
        return found


@contextmanager
def refuse_damage() -> Iterator[None]:
    """
    Wrap everything that reads: whatever is wrong in the file becomes `BackupRefused`.

    The libraries were not made for crafted files: besides their own errors they raise `TypeError` for a
    header that is cut off, `RecursionError` for many in a row, `OverflowError` for a time out of range.
    """
    try:
        yield
    except (GatewayError, OSError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:200]
        raise BackupRefused(f"it is damaged, or it is not a squidbot backup ({why})") from error


def needs_passphrase(path: Path) -> bool:
    """Return True if a backup is encrypted. Raises `BackupRefused` if the file cannot be read."""
    with _opened(path) as file:
        return is_encrypted(file.read(len(MAGIC)))


@refuse_damage()
def verify_backup(
    path: Path, *, passphrase: str | None = None, most_bytes: int | None = None
) -> VerifiedBackup:
    """Verify a backup up to ``most_bytes``. Raises BackupRefused, BackupDamaged or WrongPassphrase."""
    seen: dict[str, dict[str, Any]] = {}
    head: dict[str, Any] | None = None
    manifest: dict[str, Any] | None = None
    total = 0
    for member, content in members(path, passphrase):
        if manifest is not None:
            raise BackupRefused("there is extra data after its end")
        total += member.size
        if most_bytes is not None and total > most_bytes:
            raise BackupRefused(f"its content does not fit here ({total} bytes, {most_bytes} are free)")
        if head is None:
            head = _head(member, content)
        elif member.name == MANIFEST_NAME:
            manifest = _object(member, content, beside=seen)
        else:
            name = checked_name(member)
            if name in seen or len(seen) >= _MAX_FILES:
                raise BackupRefused(f"it contains {name!r} twice, or too many files")
            seen[name] = {"size": member.size, "sha256": copy_and_hash(content)}
    if head is None or manifest is None:
        raise BackupRefused("its end is missing")
    _compare(manifest, seen)
    return VerifiedBackup(head, seen, _stands(manifest, "database", dict))


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise BackupRefused(f"{path} cannot be read: {error.strerror or error}") from error


def members(path: Path, passphrase: str | None) -> Iterator[tuple[tarfile.TarInfo, BinaryIO]]:
    """Each member, in order, with its content; nothing is kept."""
    with _opened(path) as file:
        encrypted = is_encrypted(file.read(len(MAGIC)))
        file.seek(0)
        if encrypted and passphrase is None:
            raise BackupRefused("it is encrypted, so a passphrase is needed")
        source: Any = DecryptingReader(file, passphrase or "") if encrypted else file
        with tarfile.open(fileobj=source, mode="r|gz", tarinfo=_Member) as tar:
            for member in tar:
                if member.issparse() or not member.isreg() or member.size < 0:
                    raise BackupRefused(f"it contains {member.name[:200]!r}, which is not a file")
                content = tar.extractfile(member)
                assert content is not None
                yield member, content  # type: ignore[misc]  # it reads, which is all that is done
                tar.members.clear()  # type: ignore[attr-defined]  # else it remembers each of them
        while source.read(_BLOCK):  # it is only authenticated with its last chunk
            pass


def _head(member: tarfile.TarInfo, content: BinaryIO) -> dict[str, Any]:
    if member.name != HEAD_NAME:
        raise BackupRefused("it is not a squidbot backup")
    head = _object(member, content)
    if head.get("format") != FORMAT:
        raise BackupRefused(f"it was made by a later version of squidbot ({head.get('version')})")
    try:
        made_at = datetime.fromisoformat(head["made_at"])
    except (KeyError, TypeError, ValueError) as error:
        raise BackupRefused("it does not say when it was made") from error
    if made_at.tzinfo is None:
        raise BackupRefused("its creation time has no time zone")
    if made_at.year not in _YEARS:
        raise BackupRefused("it does not say when it was made")
    notes = _stands(head, "notes", list)
    return {**head, "version": _text(head.get("version")), "notes": [_text(note) for note in notes]}


def _stands(said: dict[str, Any], name: str, kind: type[_Kind]) -> _Kind:
    """Return the value of that name if it is of this kind; else an empty one."""
    value = said.get(name)
    return value if isinstance(value, kind) else kind()


def _text(value: object) -> str:
    """A text that a terminal can show."""
    return plain_line(str(value).encode("utf-8", "replace").decode())


def _object(member: tarfile.TarInfo, content: BinaryIO, *, beside: Collection[str] = ()) -> dict[str, Any]:
    """The object that a member holds; ``beside`` are the files that it may list."""
    if member.size > 64 * 1024 * 1024:
        raise BackupRefused(f"its {member.name} is too large")
    raw = content.read()
    most = _MAX_VALUES + sum(5 + name.count(",") + name.count("[") + name.count("{") for name in beside)
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > most:
        raise BackupRefused(f"its {member.name} lists more than it contains")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BackupRefused(f"its {member.name} cannot be read") from error
    if not isinstance(value, dict):
        raise BackupRefused(f"its {member.name} cannot be read")
    return value


def checked_name(member: tarfile.TarInfo) -> str:
    """Return the name below the home. Raises BackupRefused if it leads elsewhere."""
    name = member.name.removeprefix(PREFIX)
    parts = name.split("/")
    fine = (
        member.name.startswith(PREFIX)
        and len(name) <= 4000
        and parts[0] in _TOPS
        and (len(parts) > 1) == (parts[0] not in (DATABASE_NAME, CONFIG_NAME))
        and all(part not in ("", ".", "..") and len(os.fsencode(part)) <= _MAX_PART for part in parts)
        and "\0" not in name
    )
    if not fine:
        raise BackupRefused(f"it contains a file that does not belong in a backup: {member.name[:200]!r}")
    return name


def copy_and_hash(content: BinaryIO, out: BinaryIO | None = None) -> str:
    """The digest of the rest of a stream, which is copied to ``out``."""
    digest = hashlib.sha256()
    while block := content.read(_BLOCK):
        digest.update(block)
        if out is not None:
            out.write(block)
    return digest.hexdigest()


def _compare(manifest: dict[str, Any], seen: dict[str, dict[str, Any]]) -> None:
    listed = manifest.get("files")
    if not isinstance(listed, dict) or DATABASE_NAME not in seen:
        raise BackupRefused("its manifest cannot be read, or it has no database")
    wrong = [name for name in sorted(seen.keys() | listed.keys()) if seen.get(name) != listed.get(name)]
    if wrong:
        raise BackupRefused(f"{len(wrong)} files differ from its manifest, the first is {wrong[0]!r}")
