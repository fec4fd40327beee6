"""A flood of messages that nobody answers leaves little behind, and nothing of it is ever answered."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import IGNORED_S, InboxState
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, ROOM, accept, claim, pending

DAY_S = 86_400.0
FLOOD = 100_000
BATCH = 500
BYTES_FOR_EACH = 64


def used_bytes(path):
    """What of the file is in use; pages that were given back are used again before it grows."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        pages, free, size = (
            db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    return (pages - free) * size


def flood(first, count=BATCH):
    return [
        pending(f"${number:043}", ignore="sender_not_allowed", text="buy now " * 20)
        for number in range(first, first + count)
    ]


@pytest.mark.slow
async def test_a_flood_of_ignored_messages_is_kept_as_digests(tmp_path):
    """Of 100,000 at most 64 bytes each are left after a week; all are known, and what is not ignored is not hurt."""
    path, clock = tmp_path / "gateway.db", ManualClock()
    async with await SqliteQueue.open(path, clock=clock, synchronous="normal") as store:
        (mine,) = await accept(store, "mine")
        empty = used_bytes(path)
        for first in range(0, FLOOD, BATCH):
            rows = await store.inbox.accept("matrix", BOT, flood(first), {"next_batch": str(first)})
            assert len(rows) == BATCH
        before = used_bytes(path) - empty
        clock.advance(IGNORED_S + 60)
        assert (
            await store.maintenance.prune(older_than_s=90 * DAY_S) == FLOOD - 1
        )  # the last id is not given out again
        left = used_bytes(path) - empty
        assert left < FLOOD * BYTES_FOR_EACH < before / 4, (left, before)
        for first in (0, FLOOD // 2, FLOOD - BATCH):
            assert await store.inbox.accept("matrix", BOT, flood(first), {}) == []
        assert len(await store.inbox.accept("matrix", BOT, flood(FLOOD, 3), {})) == 3
        assert (await store.maintenance.stats()).inbox[InboxState.IGNORED] == 4
        assert (await claim(store)).head.id == mine.id
        assert await store.turns.claim(ROOM) is None
