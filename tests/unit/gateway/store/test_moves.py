"""The tables of moves are what the SQL goes by: a move that is taken out of one is not made any more."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from agent_core.messages import Amendment
from gateway.store import sql, sqlite
from gateway.store.sql import state_store
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import INBOX_MOVES, OUTBOX_MOVES, QUARANTINE_S, IllegalMove, InboxState, OutboxState
from gateway.store.stores import Completion, LostTurn
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, ROOM, accept, claim, out, pending

CLOCK = ManualClock()
STOP = Amendment(kind="stop", session=ROOM)
READY, RUNNING, ANSWERED, SETTLED, DEAD, IGNORED, QUARANTINED = InboxState


async def ready(store):
    await accept(store, "a")


async def running(store):
    await accept(store, "a")
    return await claim(store)


async def answered(store):
    (row,) = await store.turns.complete(await running(store), Completion(outbound=[out("yes")]))
    await store.outbox.sending(row)
    return row


async def dead(store):
    await store.turns.dead_letter(await running(store), "no")


async def quarantined(store):
    await store.inbox.accept("matrix", BOT, [pending("a", quarantine="why")], {})
    CLOCK.advance(QUARANTINE_S + 1)


EVERY_WAY = [
    (ready, RUNNING, lambda store, _: store.turns.claim(ROOM)),
    (ready, IGNORED, lambda store, _: store.inbox.drop(1)),
    (ready, IGNORED, lambda store, _: store.inbox.reset_session(ROOM)),
    (ready, IGNORED, lambda store, _: store.inbox.accept("matrix", BOT, [], {}, [STOP])),
    (running, READY, lambda store, turn: store.turns.release(turn)),
    (running, READY, lambda store, turn: store.turns.retry(turn, "", delay_s=1, deferral=False)),
    (running, READY, lambda store, _: store.maintenance.recover()),
    (running, ANSWERED, lambda store, turn: store.turns.complete(turn, Completion(outbound=[out("yes")]))),
    (running, SETTLED, lambda store, turn: store.turns.complete(turn, Completion())),
    (running, DEAD, lambda store, turn: store.turns.dead_letter(turn, "no")),
    (running, IGNORED, lambda store, _: store.inbox.accept("matrix", BOT, [], {}, [STOP])),
    (answered, SETTLED, lambda store, row: store.outbox.record_send(row, "$sent")),
    (dead, READY, lambda store, _: store.inbox.requeue(1)),
    (dead, IGNORED, lambda store, _: store.inbox.drop(1)),
    (quarantined, READY, lambda store, _: store.inbox.admit(1)),
    (quarantined, IGNORED, lambda store, _: store.inbox.drop(1)),
    (quarantined, IGNORED, lambda store, _: store.maintenance.prune(older_than_s=1e9)),
]
"""How a row comes to a state, where it goes from there, and by what."""


def forget_conditions():
    """What was made from the tables before they were changed."""
    for made in (state_store.inbox_sources, state_store.offline_sources, state_store.outbox_sources):
        made.cache_clear()


@pytest.fixture(autouse=True)
def tables_as_they_are():
    """What is made from changed tables is for one test."""
    forget_conditions()
    yield
    forget_conditions()


def source_of(prepare) -> InboxState:
    return InboxState(prepare.__name__)


def test_every_move_of_the_table_is_tried_below():
    """A move that is added to the table without a way is noticed here."""
    tried = {(source_of(prepare), new) for prepare, new, _ in EVERY_WAY}
    assert tried == {(old, new) for old, targets in INBOX_MOVES.items() for new in targets}


@pytest.mark.parametrize(("prepare", "target", "move"), EVERY_WAY)
@pytest.mark.parametrize("allowed", [True, False])
async def test_the_table_decides(tmp_path, monkeypatch, prepare, target, move, allowed):
    """The move is made; without its entry the SQL refuses it and the row stays where it was."""
    source = source_of(prepare)
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=CLOCK) as store:
        known = await prepare(store)
        if not allowed:
            monkeypatch.setitem(INBOX_MOVES, source, INBOX_MOVES[source] - {target})
            forget_conditions()
        with suppress(*(() if allowed else (LostTurn, IllegalMove))):
            await move(store, known)
        row, _ = await store.inbox.row(1)
        assert row.state is (target if allowed else source)


def test_no_move_names_its_sources_itself():
    """No statement that changes the state of a row has states in its condition as literals."""
    found = []
    folders = [Path(package.__file__).parent for package in (sql, sqlite)]
    for path in (path for folder in folders for path in folder.glob("*.py")):
        text = re.sub(r'"\s+f?"', "", path.read_text())
        found += re.findall(r"UPDATE inbox SET (?:(?!WHERE)[^\"])*\bstate = [^\"]*", text)
        # These do to a database at rest what is no move.
        if path.name not in {"sqlite_restore.py", "quarantine_after_restore.py", "erasure_statements.py"}:
            found += re.findall(r"UPDATE outbox SET (?:(?!WHERE)[^\"])*\bstate = [^\"]*", text)
    assert len(found) >= 18
    literal = re.compile(r"WHERE.*state\s*(=|IN)\s*\(?'")
    assert [statement for statement in found if literal.search(statement)] == []
    assert literal.search("UPDATE inbox SET state = 'ready' WHERE state = 'running'")


# ── the outbox ──
async def send(store, *, hold=False):
    [row] = await store.turns.complete(await running(store), Completion(outbound=[out("yes", hold=hold)]))
    return row


async def pending_send(store):
    return await send(store)


async def sending(store):
    row = await send(store)
    await store.outbox.sending(row)
    return row


async def uncertain(store):
    row = await sending(store)
    await store.outbox.uncertain(row)
    return row


async def unknown(store):
    row = await uncertain(store)
    await store.outbox.needs_review(row, "nobody knows")
    return row


async def dead_send(store):
    row = await sending(store)
    await store.outbox.record_failure(row, "refused", delay_s=None)
    return row


async def held(store):
    return await send(store, hold=True)


OUT = OutboxState
EVERY_WAY_OUT = [
    (OUT.PENDING, pending_send, OUT.SENDING, lambda store, row: store.outbox.sending(row)),
    (
        OUT.PENDING,
        pending_send,
        OUT.DEAD,
        lambda store, row: store.outbox.record_failure(row, "", delay_s=None),
    ),
    (OUT.PENDING, pending_send, OUT.DEAD, lambda store, _: store.inbox.drop(1)),
    (OUT.SENDING, sending, OUT.PENDING, lambda store, row: store.outbox.record_failure(row, "", delay_s=1)),
    (OUT.SENDING, sending, OUT.PENDING, lambda store, _: store.maintenance.recover()),
    (OUT.SENDING, sending, OUT.UNCERTAIN, lambda store, row: store.outbox.uncertain(row)),
    (
        OUT.SENDING,
        sending,
        OUT.UNCERTAIN,
        lambda store, row: store.outbox.record_failure(row, "", delay_s=1, certain=False),
    ),
    (OUT.SENDING, sending, OUT.SENT, lambda store, row: store.outbox.record_send(row, "$sent")),
    (OUT.SENDING, sending, OUT.DEAD, lambda store, row: store.outbox.record_failure(row, "", delay_s=None)),
    (OUT.UNCERTAIN, uncertain, OUT.SENDING, lambda store, row: store.outbox.sending(row)),
    (OUT.UNCERTAIN, uncertain, OUT.SENDING, lambda store, row: store.outbox.probing(row)),
    (
        OUT.UNCERTAIN,
        uncertain,
        OUT.PENDING,
        lambda store, row: store.outbox.record_failure(row, "", delay_s=1),
    ),
    (OUT.UNCERTAIN, uncertain, OUT.SENT, lambda store, row: store.outbox.record_send(row, "$sent")),
    (
        OUT.UNCERTAIN,
        uncertain,
        OUT.DEAD,
        lambda store, row: store.outbox.record_failure(row, "", delay_s=None),
    ),
    (OUT.UNCERTAIN, uncertain, OUT.UNKNOWN, lambda store, row: store.outbox.needs_review(row, "")),
    (OUT.DEAD, dead_send, OUT.PENDING, lambda store, _: store.inbox.requeue(1)),
    (OUT.UNKNOWN, unknown, OUT.PENDING, lambda store, _: store.inbox.requeue(1)),
    (OUT.UNKNOWN, unknown, OUT.SENT, lambda store, row: store.outbox.record_send(row, "$sent")),
    (OUT.UNKNOWN, unknown, OUT.DEAD, lambda store, _: store.inbox.drop(1)),
    (OUT.UNKNOWN, unknown, OUT.DEAD, lambda store, row: store.outbox.reject(row.id)),
    (OUT.HELD, held, OUT.PENDING, lambda store, row: store.outbox.approve(row.id)),
    (OUT.HELD, held, OUT.DEAD, lambda store, row: store.outbox.reject(row.id)),
    (OUT.HELD, held, OUT.DEAD, lambda store, _: store.inbox.drop(1)),
]
"""The state of a send, how it comes there, where it goes from there, and by what."""


def test_every_move_of_the_outbox_is_tried_below():
    """All but what is uncertain and stays so, which is seen in no state."""
    tried = {(old, new) for old, _, new, _ in EVERY_WAY_OUT}
    table = {(old, new) for old, targets in OUTBOX_MOVES.items() for new in targets}
    assert tried == table - {(OUT.UNCERTAIN, OUT.UNCERTAIN)}


@pytest.mark.parametrize(("source", "prepare", "target", "move"), EVERY_WAY_OUT)
@pytest.mark.parametrize("allowed", [True, False])
async def test_the_table_of_the_outbox_decides(tmp_path, monkeypatch, source, prepare, target, move, allowed):
    """The move is made; without its entry the SQL refuses it and the row stays where it was."""
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=CLOCK) as store:
        known = await prepare(store)
        if not allowed:
            monkeypatch.setitem(OUTBOX_MOVES, source, OUTBOX_MOVES[source] - {target})
            forget_conditions()
        with suppress(*(() if allowed else (IllegalMove,))):
            await move(store, known)
        assert (await store.outbox.row(known.id)).state is (target if allowed else source)
