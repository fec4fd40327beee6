"""
One byte of one row of the queue was wrong. The daemon ended with a traceback at each start, or one person's
conversation was stuck for ever, although everything else could be read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_core.messages import OutboundKind
from gateway.proactive.owner_contact import OwnerContact
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, answer, answered, claim, out


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(file, clock=SystemClock()) as opened:
        yield opened


def damage(file: Path, statement: str) -> None:
    """Change the closed database as no statement of ours would."""
    db = sqlite3.connect(file)
    with db:
        assert db.execute(statement).rowcount > 0
    db.close()


async def damaged(file: Path, statement: str) -> SqliteQueue:
    damage(file, statement)
    return await SqliteQueue.open(file, clock=SystemClock())


async def test_a_damaged_question_is_answered_as_such(store: SqliteQueue, file: Path) -> None:
    """It says what happened to it, comes from nobody who is trusted, and lets the next one through."""
    await accept(store, "a", "b")
    await store.aclose()
    async with await damaged(file, "UPDATE inbox SET payload = '{\"x' WHERE native_id = 'a'") as again:
        first = await claim(again)
        assert "damaged" in first.head.message.text
        assert not first.head.message.sender.verified
        await answer(again, first, "sorry")
        assert (await claim(again)).head.message.native_id == "b"
        assert [row.message.native_id for row in await again.inbox.rows()] == ["b", "a"]


async def test_a_damaged_answer_becomes_an_apology(store: SqliteQueue, file: Path) -> None:
    """It goes to the same conversation under the same key, and other conversations never notice."""
    [row] = await answered(store, "a", "the answer")
    await store.outbox.post([out("other", session=OTHER)])
    await store.aclose()
    async with await damaged(file, f"UPDATE outbox SET payload = 'no' WHERE id = {row.id}") as again:
        due = {found.message.session: found.message for found in await again.outbox.next_sends("matrix", BOT)}

        assert due[ROOM].kind is OutboundKind.APOLOGY
        assert "damaged" in due[ROOM].text
        assert due[ROOM].id == row.message.id
        assert due[OTHER].text == "other"


async def test_damaged_lines_and_sessions_stop_no_start(store: SqliteQueue, file: Path) -> None:
    """What a start reads of the queue leaves the damaged row out, and nothing else."""
    await answered(store, "a", "one")
    await accept(store, "b", session=OTHER)
    await accept(store, "c")
    await store.aclose()
    damage(file, "UPDATE history_journal SET line = '' WHERE id = (SELECT MIN(id) FROM history_journal)")
    async with await damaged(file, "UPDATE inbox SET session = '%' WHERE native_id = 'b'") as again:
        await again.maintenance.recover()

        assert len(await again.journal.lines()) == 1
        assert [session for session, _ in await again.turns.open_sessions()] == [ROOM]
        assert len(await again.inbox.rows()) == 3


@pytest.mark.parametrize("kept", ["{", "[]", '{"channel": 1}', '"x"'])
async def test_a_damaged_target_is_learnt_anew(store: SqliteQueue, kept: str) -> None:
    """Where the owner is reached is forgotten rather than raised again and again."""
    await store.state.write("owner.direct_conversation", kept)

    assert await OwnerContact(store.state).get() is None
