"""
What every `Queue` promises, as tests. An adapter is held to it by a subclass that says how it is opened.

Tests take ``store`` and ``clock`` and nothing of the adapter; the clock stands still until a test moves it.
`test_queue.py` runs them for SQLite, and `test_queue_catches.py` shows on broken stores that they
do not pass by themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.stores import Queue
from tests.clock import ManualClock
from tests.contract import queue_data as data
from tests.contract.queue_accept import AcceptContract
from tests.contract.queue_amend import AmendContract
from tests.contract.queue_maintenance import MaintenanceContract
from tests.contract.queue_overtaking import OvertakingContract
from tests.contract.queue_person import PersonContract
from tests.contract.queue_sends import SendsContract
from tests.contract.queue_turns import TurnsContract


class QueueContract(
    AcceptContract,
    AmendContract,
    TurnsContract,
    OvertakingContract,
    SendsContract,
    PersonContract,
    MaintenanceContract,
):
    """All promises. A subclass implements `opened`."""

    async def opened(self, folder: Path, clock: ManualClock) -> Queue:
        """Open the store that lives in ``folder``; a second call after ``aclose`` finds what was there."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    async def store(self, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Queue]:
        store = await self.opened(tmp_path, clock)
        yield store
        await store.aclose()

    async def test_everything_is_there_after_a_restart(self, tmp_path: Path, clock: ManualClock):
        """What was accepted, claimed, recorded, answered and sent is the same when the store is opened again."""

        store = await self.opened(tmp_path, clock)
        await data.accept(store, "a", "b", "c")
        await data.answer(store, await data.claim(store))
        kept = [await store.inbox.rows(), await store.outbox.rows(), await store.journal.lines()]
        await store.aclose()
        store = await self.opened(tmp_path, clock)
        try:
            assert [await store.inbox.rows(), await store.outbox.rows(), await store.journal.lines()] == kept
            assert await store.inbox.position("matrix", data.BOT, "next_batch") == "s3"
        finally:
            await store.aclose()
