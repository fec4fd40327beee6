"""Copies of the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was copied: schema, highest ids, identity (a secret), lengths of the histories in bytes."""

    schema: int
    inbox: int
    outbox: int
    secret: str = field(repr=False)
    lengths: dict[str, int]


class SnapshotStore(Protocol):
    """Copies of the database while it works."""

    @property
    def file(self) -> str:
        """Where its database is."""
        ...

    async def snapshot(self, target: str, histories: str) -> Snapshot:
        """
        Copy the database to ``target``, a new file for its owner alone, whole and durable.

        Args:
            target: What must not exist yet.
            histories: The folder whose files are measured at the moment of the copy.

        Raises:
            StoreUnavailable: Not now; there may be half a file.
        """
        ...
