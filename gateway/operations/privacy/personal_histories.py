"""
Histories and memory documents as an export and an erasure see them: in files of the home, or in tables of a
database. Everything here blocks, and raises `OSError` or `StoreUnavailable` where something cannot be read or
written.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_core import files
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope
from agent_core.storage import durable_files, storage_integrity
from agent_core.storage.history_lines import MAX_LINE_BYTES, as_object, encode_object
from agent_core.storage.history_paging import lines_forwards
from agent_core.storage.layout import Layout
from agent_core.storage.session_files import Record, RecordFile, named_files
from gateway.store.opening import open_postgres
from gateway.store.place import QueuePlace

Change = Callable[[bytes, dict[str, Any] | None], bytes]
"""A line as it is to be: from its bytes, and what they say (None: they cannot be read)."""


class KeptHistory(Protocol):
    """The history of one conversation, with its summary."""

    @property
    def key(self) -> SessionKey:
        """Its session."""

    @property
    def name(self) -> str:
        """Its name as a file name."""

    @property
    def place_text(self) -> str:
        """Its place, for people."""

    def exists(self) -> bool:
        """Return True if there is any line."""

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        """Each line as it is, and what it says; None if it cannot be read."""

    def rewrite(self, change: Change) -> None:
        """Replace the lines, each in its place."""

    def remove(self) -> None:
        """Remove it with its summary."""

    def summary(self) -> str:
        """The summary; empty if there is none."""

    def drop_summary(self) -> None:
        """Remove the summary and the cursor, so that it is written again from what is left."""


class KeptDocument(Protocol):
    """A memory document with its versions."""

    @property
    def place_text(self) -> tuple[str, str]:
        """Return the places of the document and its versions, for people."""

    def exists(self) -> bool:
        """Return True if it was ever written."""

    def text(self) -> str | None:
        """Its present text."""

    def versions(self) -> list[dict[str, Any]]:
        """Each version that can be read, oldest first."""

    def raw_versions(self) -> bytes:
        """The versions as lines."""

    def replace_text(self, text: str | None) -> None:
        """Replace the text, if any, and remove copies of the old one; nothing if it is the last version."""

    def replace_versions(self, versions: Sequence[dict[str, Any]]) -> None:
        """Replace the versions; they keep their numbers."""

    def remove(self) -> None:
        """Remove the document with its versions."""


class StoredHistories(Protocol):
    """All of them."""

    def histories(self) -> Iterator[KeptHistory]:
        """Each history whose session is known."""

    def history(self, key: SessionKey) -> KeptHistory:
        """The history of a session, which need not exist."""

    def documents(self) -> Iterator[KeptDocument]:
        """Each document."""

    def document(self, scope: MemoryScope) -> KeptDocument:
        """The document of a scope, which need not exist."""

    def scopes(self) -> Iterator[MemoryScope]:
        """The scopes that have documents, as far as they can be known."""

    def named_files(self) -> set[str]:
        """The path of each file that a history names."""

    def places_naming(self, addresses: Collection[str]) -> Iterator[str]:
        """The places beside files of the home that still contain one of the addresses."""

    def finish(self) -> None:
        """Make the removal permanent, and remove what was derived from the removed data."""


class KeptFiles:
    """Implements `StoredHistories` for files."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def histories(self) -> Iterator[KeptHistory]:
        """Each history whose session is known."""
        for key, path in storage_integrity.histories(self._layout):
            if key is not None and key.is_named(path.stem):
                yield _History(self._layout, key, path)

    def history(self, key: SessionKey) -> KeptHistory:
        """The history of a session."""
        return _History(self._layout, key, self._layout.history(key))

    def documents(self) -> Iterator[KeptDocument]:
        """Each document, also those whose names were shortened, and versions in whatever folder."""
        found = {versions: document for document, versions in storage_integrity.documents(self._layout)}
        for versions in storage_integrity.version_files(self._layout):
            found.setdefault(versions, versions.with_name("MEMORY.md"))
        for versions, document in found.items():
            yield _Document(self._layout, document, versions)

    def document(self, scope: MemoryScope) -> KeptDocument:
        """The document of a scope."""
        return _Document(self._layout, self._layout.document(scope), self._layout.versions(scope))

    def scopes(self) -> Iterator[MemoryScope]:
        """Yield the scopes that have documents."""
        return self._layout.scopes()

    def named_files(self) -> set[str]:
        """The path of each file that a history names."""
        return set(named_files(self._layout.sessions))

    def places_naming(self, addresses: Collection[str]) -> Iterator[str]:
        """Nothing: everything is in files of the home."""
        yield from ()

    def finish(self) -> None:
        """Remove the search index and sync the folders."""
        home = self._layout.home
        for ending in ("", "-wal", "-shm", "-journal"):
            (home / f"search.db{ending}").unlink(missing_ok=True)
        for folder in (home, self._layout.sessions, home / "memory", home / "attachments"):
            with contextlib.suppress(FileNotFoundError):
                files.sync(folder)


@dataclass(frozen=True, slots=True)
class _History:
    layout: Layout
    key: SessionKey
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def place_text(self) -> str:
        return f"sessions/{self.path.name}"

    def exists(self) -> bool:
        return self.path.exists()

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        return _lines_of(self.path)

    def rewrite(self, change: Change) -> None:
        """Write a new file beside the old one and rename it."""
        if not self.path.exists():
            return
        making = self.path.with_name(f"{self.path.name}.forgetting")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(making, flags, 0o600), "wb", buffering=1 << 20) as out:
            for raw, line in self.lines():
                out.write(change(raw, line).rstrip(b"\n") + b"\n")
            out.flush()
            os.fsync(out.fileno())
        making.replace(self.path)
        files.sync(self.path.parent)

    def remove(self) -> None:
        for path in self.layout.sessions.glob(f"{_literal(self.path.stem)}.*"):
            if path.name.startswith((f"{self.path.stem}.jsonl", f"{self.path.stem}.meta.json")):
                path.unlink()
        shutil.rmtree(self.layout.home / "memory" / self.path.stem, ignore_errors=True)

    def summary(self) -> str:
        return _read(self.layout.summary(self.key))

    def drop_summary(self) -> None:
        layout, key = self.layout, self.key
        for path in layout.sessions.glob(f"{_literal(layout.name(key))}.meta.json.*"):
            path.unlink()
        layout.summary(key).with_name("meta.json").unlink(missing_ok=True)  # as an earlier squidbot left it
        if layout.record(key).exists() or layout.summary(key).exists():
            RecordFile(layout.record(key), layout.summary(key), key).save(Record())


@dataclass(frozen=True, slots=True)
class _Document:
    layout: Layout
    document: Path
    version_file: Path

    @property
    def place_text(self) -> tuple[str, str]:
        home = self.layout.home
        shown = [
            str(path.relative_to(home) if path.is_relative_to(home) else path)
            for path in (self.document, self.version_file)
        ]
        return shown[0], shown[1]

    def exists(self) -> bool:
        return self.document.exists() or self.version_file.exists()

    def text(self) -> str | None:
        return _read(self.document) if self.document.exists() else None

    def versions(self) -> list[dict[str, Any]]:
        if not self.version_file.exists():
            return []
        return [line for _, line in _lines_of(self.version_file) if line is not None]

    def raw_versions(self) -> bytes:
        return durable_files.read(self.version_file) if self.version_file.is_file() else b""

    def replace_text(self, text: str | None) -> None:
        if text is not None:
            files.replace(self.document, text.encode())
        for copy in self.document.parent.glob("MEMORY.md.*"):
            copy.unlink()

    def replace_versions(self, versions: Sequence[dict[str, Any]]) -> None:
        files.replace(self.version_file, b"".join(map(encode_object, versions)))

    def remove(self) -> None:
        for path in self.document.parent.glob(f"{_literal(self.document.name)}*"):
            path.unlink()
        shutil.rmtree(self.version_file.parent, ignore_errors=True)


def _literal(text: str) -> str:
    """A text for `Path.glob` that means itself."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _lines_of(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    handle = durable_files.open_regular(path, os.O_NOFOLLOW)
    try:
        for _, raw in lines_forwards(handle, 0, max_line_bytes=MAX_LINE_BYTES):
            yield raw or b"", as_object(raw) if raw else None
    finally:
        os.close(handle)


def _read(path: Path) -> str:
    return durable_files.read(path).decode("utf-8", "replace") if path.is_file() else ""


@contextmanager
def open_histories(layout: Layout, place: QueuePlace) -> Iterator[StoredHistories]:
    """Open the histories: files in the home, else tables. Raises StoreUnavailable, ConfigInvalid."""
    if isinstance(place, Path):
        yield KeptFiles(layout)
        return
    with open_postgres():
        from gateway.store.postgres.histories.personal_lines import KeptTables
        from gateway.store.postgres.postgres_queue import HOME

        with KeptTables(place, HOME) as kept:
            yield kept
