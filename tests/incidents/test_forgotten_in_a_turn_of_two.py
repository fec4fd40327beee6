"""
Two people had asked in a room, and one answer to both was about to be sent when one of them was forgotten: the
answer went with him, and the other got none, nor an apology.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest

from agent_core.messages import Audience, InboundMessage, Sender
from agent_core.storage.layout import Layout
from gateway.operations.privacy.inventory import people
from gateway.operations.privacy.person_erasure import forget_person
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState
from gateway.store.stores import Completion, NewOutbound, Pending
from tests.home_world import BOT, ROOM, fill

NOW = datetime(2026, 2, 1, tzinfo=UTC)
A, B = "@alice:hs.test", "@bob:hs.test"


def asked(native_id: str, sender: str, at: datetime) -> Pending:
    return Pending(
        InboundMessage(
            channel="matrix",
            account=BOT,
            native_id=native_id,
            session=ROOM,
            sender=Sender(address=sender, verified=True),
            text=f"{native_id} of {sender}",
            received_at=at,
            audience=Audience.GROUP,
        )
    )


@pytest.mark.parametrize("end", ["running", "answered", "sending"])
async def test_the_other_is_answered_all_the_same(tmp_path, end):
    """Unless something of the answer has left already; and however far the turn was."""
    filled = await fill(tmp_path / "home")
    database = filled.home.database
    async with await SqliteQueue.open(database, clock=filled.clock) as store:
        batch = [asked("$x1", A, filled.clock.now()), asked("$x2", B, filled.clock.now())]
        await store.inbox.accept("matrix", BOT, batch, {})
        older = "UPDATE inbox SET turn = '1-older' WHERE native_id IN ('$x1', '$x2')"  # claimed by an older version
        await store.turns._writer.call("older", lambda db: db.execute(older) and None, locks=())
        turn = await store.turns.claim(ROOM, merge=5)
        assert turn is not None
        assert len(turn.rows) == 2
        if end != "running":
            answer = NewOutbound("matrix", BOT, ROOM, "to both")
            await store.turns.complete(turn, Completion(outbound=(answer,)))
        if end == "sending":
            [out] = await store.outbox.next_sends("matrix", BOT, busy=(), limit=5)
            await store.outbox.sending(out)
    layout = Layout(filled.home.root, filled.home.root / "workspace")
    forget_person(layout, database, people([B], [A]), now=NOW)
    async with await SqliteQueue.open(database, clock=filled.clock) as store:
        await store.maintenance.recover()
        again = await store.turns.claim(ROOM, merge=5)
        if end == "sending":
            assert again is None
        else:
            assert again is not None
            assert [row.message.native_id for row in again.rows] == ["$x1"]
            await store.turns.complete(
                again, Completion(outbound=(NewOutbound("matrix", BOT, ROOM, "to one"),))
            )
            [out] = await store.outbox.next_sends("matrix", BOT, busy=(), limit=5)
            await store.outbox.sending(out)
            await store.outbox.record_send(out, "$sent")
        rows = {row.message.native_id: row.state for row in await store.inbox.rows(limit=50)}
    assert rows["$x1"] is InboxState.SETTLED
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("PRAGMA foreign_key_check").fetchone() is None
