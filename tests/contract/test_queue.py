"""The SQLite store keeps the promises of the port."""

from __future__ import annotations

from pathlib import Path

from gateway.store.sqlite.sqlite_queue import SqliteQueue
from tests.clock import ManualClock
from tests.contract.erasure import ErasureContract
from tests.contract.queue_contract import QueueContract


class TestSqlite(QueueContract, ErasureContract):
    """All of them."""

    async def opened(self, folder: Path, clock: ManualClock) -> SqliteQueue:
        return await SqliteQueue.open(folder / "gateway.db", clock=clock)
