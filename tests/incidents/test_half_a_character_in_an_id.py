"""
An id with half a surrogate pair in it could not be put into a column. The channel that brought it was torn
down at each try, and everything that came with it was refused for ever.
"""

from __future__ import annotations

from pathlib import Path

from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.contract.queue_data import BOT, message, pending


async def test_it_is_accepted_once_like_any_other(tmp_path: Path) -> None:
    """A batch with such an id is taken whole, and a repetition is recognised."""
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as store:
        batch = [pending("a"), pending("half \ud800"), pending("b")]
        assert len(await store.inbox.accept("matrix", BOT, batch, {})) == 3
        assert await store.inbox.accept("matrix", BOT, batch, {}) == []

        turn = await store.turns.claim(message("a").session, merge=9)
        assert turn is not None
        assert len(turn.rows) == 3
