"""A database of an earlier version is brought up to date, with nothing lost and a copy kept."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from gateway.proactive.alerts import OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.queue.sql.tables import VERSION
from gateway.queue.sqlite import schema
from gateway.queue.sqlite.migrations import MIGRATIONS, copy_name, migrate
from gateway.queue.sqlite.store import SqliteQueue
from gateway.queue.states import InboxState, OutboxState
from gateway.queue.stores import StoreUnavailable
from gateway.turns.commands.histories import Histories
from gateway.turns.commands.new_conversation import NewConversation
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, claim, out, pending

DATA = Path(__file__).parents[3] / "data"
VERSION_1 = DATA / "gateway-v1.db"
VERSION_5 = DATA / "gateway-v5.db"


@pytest.fixture
def older(tmp_path):
    """A database that version 1 has written, with a row in every state that it knew."""
    path = tmp_path / "gateway.db"
    shutil.copyfile(VERSION_1, path)
    return path


def rows(path, query):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


def tables(path):
    """What the database is made of, however its words are spaced and quoted."""
    found = rows(path, "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    return {(kind, name): re.sub(r"\s+|\"", "", sql or "") for kind, name, sql in found}


async def test_nothing_is_lost_and_work_goes_on(older):
    """Every row has its state and text, running turns keep their steps, and the new states work."""
    columns = "id, native_id, state, payload, attempts, turn, fence, tail, error"
    sends = (
        "id, inbox_id, turn, key, session, payload, state, attempts, next_at, provider_id, error, ended_at"
    )
    before = rows(older, f"SELECT {columns} FROM inbox"), rows(older, f"SELECT {sends} FROM outbox")
    async with await SqliteQueue.open(older, clock=ManualClock()) as store:
        after = rows(older, f"SELECT {columns} FROM inbox"), rows(older, f"SELECT {sends} FROM outbox")
        assert after == before
        await store.maintenance.recover()
        assert await accept(store, "settled", "answered", "dead", "ignored", "waiting") == []
        assert await store.inbox.position("matrix", BOT, "next_batch") == "s5"
        turn = await claim(store, OTHER)
        assert [step.result for step in await store.turns.steps(turn)] == [{"done": True}]
        (sent,) = await store.outbox.rows(states=[OutboxState.SENT])
        assert await store.outbox.delivered("matrix", BOT, "$sent") == sent.message.id
        assert len(await store.journal.lines()) == 4
        assert (await store.usage.rows())[0].usage.prompt_tokens == 5
        (held,) = await store.outbox.post([out("draft", hold=True)])
        assert (await store.outbox.approve(held.id)).state is OutboxState.PENDING
        (kept,) = await store.inbox.accept("matrix", BOT, [pending("q", quarantine="why")], {})
        assert kept.state is InboxState.QUARANTINED
        assert (await claim(store, ROOM)).head.message.native_id == "waiting"
    assert rows(older, "PRAGMA foreign_key_check") == []
    assert rows(older, "PRAGMA integrity_check") == [("ok",)]


async def test_a_copy_of_the_older_one_is_kept(older):
    """Whole, as it was, readable for its owner alone, and not touched by later starts."""
    before = rows(older, "SELECT * FROM inbox")
    for _ in range(2):
        async with await SqliteQueue.open(older, clock=ManualClock()) as store:
            await store.maintenance.recover()
    copy = copy_name(older, 1)
    assert rows(copy, "PRAGMA user_version") == [(1,)]
    assert rows(copy, "SELECT * FROM inbox") == before
    assert rows(copy, "PRAGMA integrity_check") == [("ok",)]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(file.name for file in older.parent.iterdir()) == ["gateway.db", copy.name]


async def test_a_step_that_fails_leaves_what_was(older):
    """A crash in the middle of a step is the same as one before it; the next start does it all."""

    def fails(db):
        MIGRATIONS[1](db)
        raise RuntimeError

    db = schema.open_writer(older, busy_timeout_s=1)
    before = tables(older), rows(older, "SELECT * FROM inbox")
    with pytest.raises(RuntimeError):
        migrate(db, older, 1, to=2, steps={1: fails})
    assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)
    db.close()
    assert (tables(older), rows(older, "SELECT * FROM inbox")) == before
    async with await SqliteQueue.open(older, clock=ManualClock()) as store:
        assert len(await store.inbox.rows()) == 5
    assert rows(older, "PRAGMA user_version") == [(VERSION,)]


async def test_a_step_that_loses_what_is_referred_to_is_not_kept(older):
    """The control of the check after each step: rows of the outbox that hang on nothing are seen."""

    def loses(db):
        db.execute("DELETE FROM inbox WHERE state = 'answered'")

    db = schema.open_writer(older, busy_timeout_s=1)
    with pytest.raises(sqlite3.IntegrityError, match="refers to nothing"):
        migrate(db, older, 1, to=2, steps={1: loses})
    db.close()
    assert rows(older, "PRAGMA user_version") == [(1,)]


async def test_without_room_for_the_copy_nothing_is_begun(older):
    """The start fails for now, with the reason, and the file stays as it is."""
    copy_name(older, 1).with_name("gateway.db.v1.bak.new").mkdir()
    with pytest.raises(StoreUnavailable, match="no copy"):
        await SqliteQueue.open(older, clock=ManualClock())
    assert rows(older, "PRAGMA user_version") == [(1,)]


async def test_what_the_gateway_remembered_in_a_channel_of_its_own_moves(tmp_path):
    """
    Version 5 kept it as positions of a channel ``gateway``: each is found by who reads it now, what was posted
    once is not posted again, and the positions of the channels stay.
    """
    path = tmp_path / "gateway.db"
    shutil.copyfile(VERSION_5, path)
    before = rows(path, "SELECT * FROM positions WHERE channel <> 'gateway'")
    kept = rows(path, "SELECT value FROM positions WHERE channel = 'gateway' AND account <> 'once'")
    assert len(kept) == 4
    async with await SqliteQueue.open(path, clock=ManualClock()) as store:
        target = await OwnerContact(store.state).get()
        assert (target.channel, str(target.session)) == ("matrix", "matrix/!owner%3ahs.test")
        alerts = OwnerAlerts(
            store=store, target=OwnerContact(store.state), notifier=None, clock=ManualClock()
        )
        await alerts._load()
        assert list(alerts._waiting()) == ["channel email"]
        assert json.loads(await store.state.read("owner.quarantine_digest"))["id"] == 3
        assert await NewConversation(store, Histories(None, None)).waits(ROOM)
        for topic in ("budget:tokens:warned", "digest"):
            assert await store.outbox.post([out("again")], once=(topic, "2026-01-01")) == []
            assert await store.outbox.post([out("another day")], once=(topic, "2026-01-02"))
    assert rows(path, "SELECT * FROM positions") == before
    assert sorted(rows(path, "SELECT value FROM state")) == sorted(kept)


async def test_step_by_step_and_at_once_lead_to_the_same(older, tmp_path):
    """A database that came by the steps has the tables of one that is made from nothing."""
    for path in (older, tmp_path / "new.db"):
        async with await SqliteQueue.open(path, clock=ManualClock()):
            pass
    assert tables(older) == tables(tmp_path / "new.db")
    assert rows(older, "PRAGMA user_version") == rows(tmp_path / "new.db", "PRAGMA user_version")
