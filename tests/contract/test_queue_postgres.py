"""The store in PostgreSQL keeps the promises of the port, each test in a database of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.sql.engine import journal_lines
from gateway.store.stores import Queue
from tests.clock import ManualClock
from tests.contract.erasure import ErasureContract
from tests.contract.queue_contract import QueueContract
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]


class TestPostgres(QueueContract, ErasureContract):
    """All of them, with a journal of lines, which the embedded queue has; the tables: `test_memory_postgres`."""

    @pytest.fixture(autouse=True)
    def server(self, postgres: PostgresServer, tables: str) -> None:
        self.postgres, self.tables, self.database = postgres, tables, ""

    async def lease_time_passes(self, store: Queue, clock: ManualClock, seconds: float) -> None:
        """The server's clock decides, not ours."""
        clock.advance(10_000)
        sooner = "UPDATE leases SET expires_at = expires_at - ?"
        await store.maintenance._writer.call(  # type: ignore[attr-defined]
            "sooner", lambda db: db.execute(sooner, (seconds,)) and None, locks=()
        )

    async def opened(self, folder: Path, clock: ManualClock) -> PostgresQueue:
        if not self.database:
            self.database = self.postgres.new_database(template=self.tables)
        return await PostgresQueue.open(self.postgres.url(self.database), clock=clock, journal=journal_lines)
