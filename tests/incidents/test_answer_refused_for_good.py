"""
A mail server found an answer too large, a homeserver found it too long: the answer was marked dead, and the
person who had asked never heard of it. Every accepted message ends in an answer or in an apology.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agent_core.messages import OutboundKind, OutboundMessage
from channels.base import Capabilities, DeliveryFailed, DeliveryUncertain, Inbox, Receipt, Redelivery
from gateway.routing.delivery import Delivery
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import OutboxState
from gateway.system.clock import SystemClock
from tests.contract.queue_data import BOT, ROOM, answered, out


class Picky:
    """A channel whose server refuses some texts for good, the first ``uncertain`` tries of all with silence."""

    name, account = "matrix", BOT
    capabilities = Capabilities(redelivery=Redelivery.SAME_KEY)

    def __init__(self, *refused: str, uncertain: int = 0) -> None:
        self.refused = refused
        self.silent = uncertain
        self.taken: list[OutboundMessage] = []

    async def run(self, inbox: Inbox) -> None:
        raise NotImplementedError

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        await uncertain()
        if self.silent:
            self.silent -= 1
            raise DeliveryUncertain("silence", retry_after_s=0.1)
        if any(text in message.text for text in self.refused):
            raise DeliveryFailed("552 too big", public="My answer is too large.")
        self.taken.append(message)
        return Receipt(f"taken-{len(self.taken)}")

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        return None

    async def typing(self, session: object, *, on: bool) -> None: ...

    async def preview(self, session: object, text: str) -> None: ...

    async def aclose(self) -> None: ...


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as opened:
        yield opened


@asynccontextmanager
async def running(channel: Picky, store: SqliteQueue) -> AsyncIterator[None]:
    delivery = Delivery(channel, store, SystemClock())
    delivery.link(up=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run)
        yield
        tasks.cancel_scope.cancel()


async def quiet(store: SqliteQueue) -> None:
    """Wait until nothing is left to send."""
    opened = [OutboxState.PENDING, OutboxState.SENDING, OutboxState.UNCERTAIN]
    with anyio.fail_after(60):
        while await store.outbox.rows(states=opened):
            await anyio.sleep(0.01)


async def test_who_asked_is_told(store: SqliteQueue) -> None:
    """The apology goes where the answer would have gone, says why, and hangs on the same message."""
    rows = await answered(store, "a", "the answer")
    channel = Picky("the answer")
    async with running(channel, store):
        await quiet(store)

    [told] = channel.taken
    assert told.kind is OutboundKind.APOLOGY
    assert "could not send it. My answer is too large." in told.text
    assert (told.session, told.context) == (ROOM, rows[0].message.context)
    found = await store.inbox.row(rows[0].inbox_id or 0)
    assert found is not None
    assert [row.state for row in found[1]] == [OutboxState.DEAD, OutboxState.SENT]


async def test_many_refused_parts_are_one_apology(store: SqliteQueue) -> None:
    """An answer in parts is one answer; an apology that is refused too is the end of it."""
    await answered(store, "a", "part 1", "part 2", "part 3")
    some = Picky("part 2", "part 3")
    async with running(some, store):
        await quiet(store)
    assert [message.kind for message in some.taken] == [OutboundKind.REPLY, OutboundKind.APOLOGY]

    await answered(store, "b", "again")
    async with running(Picky("again", "Sorry"), store):
        await quiet(store)
    assert len(await store.outbox.rows(states=[OutboxState.DEAD])) == 4


async def test_what_may_have_arrived_is_not_apologised_for(store: SqliteQueue) -> None:
    """After silence a refusal may speak of the repetition only: an answer and an apology would be two."""
    await answered(store, "a", "the answer")
    channel = Picky("the answer", uncertain=1)
    async with running(channel, store):
        await quiet(store)

    assert channel.taken == []


async def test_what_nobody_asked_for_is_not_apologised_for(store: SqliteQueue) -> None:
    """A message that answers nothing just dies."""
    await store.outbox.post([out("news")])
    channel = Picky("news")
    async with running(channel, store):
        await quiet(store)

    assert channel.taken == []
