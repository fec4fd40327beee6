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
        """Whose."""
        ...

    @property
    def name(self) -> str:
        """As a name of a file."""
        ...

    @property
    def told(self) -> str:
        """Where it is, for people."""
        ...

    def exists(self) -> bool:
        """Whether there is any line."""
        ...

    def lines(self) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
        """Each line as it is, and what it says; None if it cannot be read."""
        ...

    def rewrite(self, change: Change) -> None:
        """Write the lines anew, each in its place."""
        ...

    def remove(self) -> None:
        """It goes, with its summary."""
        ...

    def summary(self) -> str:
        """The summary; empty if there is none."""
        ...

    def drop_summary(self) -> None:
        """The summary goes, and the cursor with it, so that it is written again from what is left."""
        ...


class KeptDocument(Protocol):
    """A memory document with its versions."""

    @property
    def told(self) -> tuple[str, str]:
        """Where the document and its versions are, for people."""
        ...

    def exists(self) -> bool:
        """Whether it was ever written."""
        ...

    def text(self) -> str | None:
        """What it says now."""
        ...

    def versions(self) -> list[dict[str, Any]]:
        """Each version that can be read, oldest first."""
        ...

    def raw_versions(self) -> bytes:
        """The versions as lines."""
        ...

    def replace_text(self, text: str | None) -> None:
        """It says this, if anything; copies of what it said go. Nothing where the last version is it."""
        ...

    def replace_versions(self, versions: Sequence[dict[str, Any]]) -> None:
        """These are its versions, with the numbers they had."""
        ...

    def remove(self) -> None:
        """It goes, with its versions."""
        ...


class Kept(Protocol):
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
        """Whose documents there are, as far as it can be told."""
        ...

    def named_files(self) -> set[str]:
        """The path of each file that a history names."""
        ...

    def still_named(self, addresses: Collection[str]) -> Iterator[str]:
        """Where, beside files of the home, one of the addresses still stands."""
        ...

    def finish(self) -> None:
        """What was removed is removed for good, and so is what was derived from it."""
        ...
