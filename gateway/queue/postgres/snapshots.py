"""Refuses copies of the database: the server's tools make them, not squidbot."""

from __future__ import annotations

from gateway.queue.errors import StoreUnavailable
from gateway.queue.snapshots import Snapshot


class NoSnapshots:
    """Implements `gateway.queue.snapshots.SnapshotStore` by an error that says who makes copies."""

    def __init__(self, where: str) -> None:
        self._where = where

    @property
    def file(self) -> str:
        """The database, without a password."""
        return self._where

    async def snapshot(self, target: str, histories: str) -> Snapshot:
        """Raise StoreUnavailable always."""
        raise StoreUnavailable(
            f"The queue is in {self._where}: back it up with the tools of the server, such as pg_dump.",
            path=self._where,
            operation="snapshot",
        )
