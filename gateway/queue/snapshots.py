"""The contract for copies of the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy's schema, highest ids, identity (a secret) and lengths of the histories in bytes."""

    schema: int
    inbox: int
    outbox: int
    secret: str = field(repr=False)
    lengths: dict[str, int]


class SnapshotStore(Protocol):
    """Copies the database while it is in use."""

    @property
    def file(self) -> str:
        """The place of the database."""
        ...

    async def snapshot(self, target: str, histories: str) -> Snapshot:
        """
        Copy the database to ``target``, a new file readable by its owner alone, completely and durably.

        Args:
            target: A path that must not exist yet.
            histories: The folder whose files are measured at the moment of the copy.

        Raises:
            StoreUnavailable: The copy failed for now; a partial file may remain.
        """
        ...
