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
        """Copy the database durably to a new file and measure ``histories``. Raises StoreUnavailable."""
        ...
