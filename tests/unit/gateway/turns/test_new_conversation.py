"""When a conversation begins anew, where several processes keep that in one database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_core.messages import SessionKey
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.turns.commands.conversation_commands import Histories
from gateway.turns.commands.new_conversation import NewConversation
from tests.clock import ManualClock
from tests.contract.queue_data import OTHER, ROOM, accept, claim


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as opened:
        yield opened


def of_a_process(store: SqliteQueue) -> NewConversation:
    return NewConversation(store, Histories(None, None))


async def is_wished(conversation: NewConversation, store: SqliteQueue, session: SessionKey) -> None:
    """Somebody writes `!new` behind a question that is just answered."""
    await accept(store, f"question in {session}", session=session)
    await accept(store, f"!new in {session}", session=session, alone=True)
    await claim(store, session)
    command = await store.turns.claim(session, out_of_band=True)
    assert command is not None and await conversation.request_reset(command) == 1


async def test_what_several_processes_keep_is_kept(store: SqliteQueue) -> None:
    """Both have looked before: neither takes away what the other one keeps."""
    a, b = of_a_process(store), of_a_process(store)
    assert [await each.is_pending(ROOM) for each in (a, b)] == [False, False]
    await is_wished(a, store, ROOM)
    await is_wished(b, store, OTHER)
    following = of_a_process(store)
    assert [await following.is_pending(session) for session in (ROOM, OTHER)] == [True, True]
