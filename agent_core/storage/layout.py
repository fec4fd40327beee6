"""
The paths below the home folder, and the folder names of people and rooms. The package's docstring draws the
layout. Sessions use `SessionKey.file_name`; people and rooms use the same kind of encoding, so that no
address, however chosen, can leave its folder or meet another's. On a file system that does not tell case
apart, names with capitals get a hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind

_SAFE = re.compile(r"[A-Za-z0-9_\-]")
_NAME_LIMIT = 150


def folder_name(name: str) -> str:
    """
    A name for a folder: no separator, no dot, at most 150 characters, different for every ``name``.

    Short names are encoded reversibly (`scope_from_folder`); a long one keeps its beginning and ends in a
    hash after ``=~``, which the reversible form never contains.
    """
    if not name:
        raise ValueError("an empty name has no folder")
    encoded = "".join(
        char
        if _SAFE.fullmatch(char)
        else "".join(f"={byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in name
    )
    if len(encoded) <= _NAME_LIMIT:
        return encoded
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return f"{encoded[: _NAME_LIMIT - 42]}=~{digest}"


def _caseless(folder: str, name: str) -> str:
    """Return the case-insensitive form of a `folder_name`, see `SessionKey.caseless_name`."""
    if folder == folder.lower() or "=~" in folder:
        return folder
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return f"{folder[: _NAME_LIMIT - 42]}=~{digest}"


@lru_cache(maxsize=64)
def _mixes_case(home: Path) -> bool:
    """Return True if ``a`` and ``A`` are one file in this folder, as on most disks of macOS and Windows."""
    with contextlib.suppress(OSError):
        for path in (*sorted(home.iterdir()), home):
            other = path.with_name(path.name.swapcase())
            if other != path:
                return other.exists() and other.samefile(path)
    return False


def _stands(folder: Path, *names: str) -> bool:
    """Return True if a folder has an entry with exactly one of these names."""
    try:
        return not set(names).isdisjoint(os.listdir(folder))  # noqa: PTH208 - names are wanted, not paths
    except OSError:
        return False


def scope_from_folder(folder: str) -> str:
    """Read what `folder_name` wrote. Raises ValueError for a shortened or invalid name."""
    if "=~" in folder:
        raise ValueError(f"a shortened name cannot be read back: {folder!r}")
    raw = re.sub(
        rb"=([0-9a-f]{2})",
        lambda match: bytes.fromhex(match[1].decode()),
        folder.encode("utf-8", "surrogatepass"),
    )
    name = raw.decode("utf-8", "surrogatepass")
    if folder_name(name) != folder:
        raise ValueError(f"not the folder of a person or a room: {folder!r}")
    return name


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one home. ``workspace`` is the folder that holds the owner's ``MEMORY.md``."""

    home: Path
    workspace: Path

    @property
    def sessions(self) -> Path:
        """The folder of all histories."""
        return self.home / "sessions"

    def name(self, key: SessionKey) -> str:
        """
        The name of a session's files: its `file_name`, unless another session could have the same.

        Where case is not told apart a new session gets its `caseless_name`, and keeps it if the home moves.
        """
        plain, caseless = key.file_name, key.caseless_name
        if plain == caseless:
            return plain
        if (self.sessions / f"{caseless}.meta.json").exists():
            return caseless
        if _mixes_case(self.home) and not _stands(self.sessions, f"{plain}.jsonl", f"{plain}.meta.json"):
            return caseless
        return plain

    def history(self, key: SessionKey) -> Path:
        """The append-only history of a session."""
        return self.sessions / f"{self.name(key)}.jsonl"

    def record(self, key: SessionKey) -> Path:
        """Cursor and summary of a session: one atomic record."""
        return self.sessions / f"{self.name(key)}.meta.json"

    def summary(self, key: SessionKey) -> Path:
        """The readable copy of a session's summary."""
        return self.home / "memory" / self.name(key) / "summary.md"

    def document(self, scope: MemoryScope) -> Path:
        """The memory document of a scope, which people may edit."""
        return (
            self.workspace / "MEMORY.md"
            if scope.kind is ScopeKind.OWNER
            else self._folder(scope) / "MEMORY.md"
        )

    def versions(self, scope: MemoryScope) -> Path:
        """All versions of a memory document, append-only."""
        return self._folder(scope) / "MEMORY.history.jsonl"

    def scopes(self) -> Iterator[MemoryScope]:
        """The scopes that have documents; a shortened name cannot be told."""
        found = [MemoryScope(ScopeKind.OWNER)]
        for kind, folder in ((ScopeKind.PERSON, "people"), (ScopeKind.ROOM, "rooms")):
            for path in (self.home / "memory" / folder).glob("*"):
                with contextlib.suppress(ValueError):
                    found.append(MemoryScope(kind, scope_from_folder(path.name)))
        for scope in found:
            if self.document(scope).exists() or self.versions(scope).exists():
                yield scope

    def _folder(self, scope: MemoryScope) -> Path:
        match scope.kind:
            case ScopeKind.OWNER:
                return self.home / "memory" / "owner"
            case ScopeKind.PERSON:
                return self._named(self.home / "memory" / "people", scope.name)
            case ScopeKind.ROOM:
                return self._named(self.home / "memory" / "rooms", scope.name)

    def _named(self, folder: Path, name: str) -> Path:
        """Return the name of a person's or room's folder, as `name` does."""
        plain = folder_name(name)
        caseless = _caseless(plain, name)
        if plain == caseless:
            return folder / plain
        mixed = _mixes_case(self.home) and not _stands(folder, plain)
        return folder / (caseless if mixed or (folder / caseless).exists() else plain)
