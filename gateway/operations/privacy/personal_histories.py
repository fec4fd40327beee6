"""
Histories and memory documents as an export and an erasure see them, wherever they are: in files of the home,
or in tables of a database.

Everything here blocks, and raises `OSError` or `StoreUnavailable` where something cannot be read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope

Change = Callable[[bytes, dict[str, Any] | None], bytes]
"""A line as it is to be: from its bytes, and what they say (None: they cannot be read)."""


class KeptHistory(Protocol):
    """The history of one conversation, with its summary."""

    @property
    def key(self) -> SessionKey:
        """Its session."""
        ...

    @property
    def name(self) -> str:
        """Its name as a file name."""
        ...

    @property
    def place_text(self) -> str:
        """Its place, for people."""
        ...

    def exists(self) -> bool:
        """Return True if there is any line."""
        ...

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        """Each line as it is, and what it says; None if it cannot be read."""
        ...

    def rewrite(self, change: Change) -> None:
        """Replace the lines, each in its place."""
        ...

    def remove(self) -> None:
        """Remove it with its summary."""
        ...

    def summary(self) -> str:
        """The summary; empty if there is none."""
        ...

    def drop_summary(self) -> None:
        """Remove the summary and the cursor, so that it is written again from what is left."""
        ...


class KeptDocument(Protocol):
    """A memory document with its versions."""

    @property
    def place_text(self) -> tuple[str, str]:
        """Return the places of the document and its versions, for people."""
        ...

    def exists(self) -> bool:
        """Return True if it was ever written."""
        ...

    def text(self) -> str | None:
        """Its present text."""
        ...

    def versions(self) -> list[dict[str, Any]]:
        """Each version that can be read, oldest first."""
        ...

    def raw_versions(self) -> bytes:
        """The versions as lines."""
        ...

    def replace_text(self, text: str | None) -> None:
        """Replace the text, if any, and remove copies of the old one; nothing if it is the last version."""
        ...

    def replace_versions(self, versions: Sequence[dict[str, Any]]) -> None:
        """Replace the versions; they keep their numbers."""
        ...

    def remove(self) -> None:
        """It goes, with its versions."""
        ...


class StoredHistories(Protocol):
    """All of them."""

    def histories(self) -> Iterator[KeptHistory]:
        """Each history whose session is known."""
        ...

    def history(self, key: SessionKey) -> KeptHistory:
        """The history of a session, which need not exist."""
        ...

    def documents(self) -> Iterator[KeptDocument]:
        """Each document."""
        ...

    def document(self, scope: MemoryScope) -> KeptDocument:
        """The document of a scope, which need not exist."""
        ...

    def scopes(self) -> Iterator[MemoryScope]:
        """The scopes that have documents, as far as they can be known."""
        ...

    def named_files(self) -> set[str]:
        """The path of each file that a history names."""
        ...

    def places_naming(self, addresses: Collection[str]) -> Iterator[str]:
        """The places beside files of the home that still contain one of the addresses."""
        ...

    def finish(self) -> None:
        """Make the removal permanent, and remove what was derived from the removed data."""
        ...
