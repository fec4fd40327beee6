"""
A guest came into the room in which the owner talks to the bot. The daily note about quarantined mail, with
the addresses and subjects of those who wrote, and alerts were put there for both to read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from agent_core.messages import Audience, InboundMessage, Sender, SessionKey
from channels.base import ChannelUnavailable
from gateway.proactive.owner_alerts import ASK_AGAIN_S, OwnerAlerts
from gateway.proactive.owner_contact import ContactResult, OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Pending
from gateway.system.clock import SystemClock
from tests.clock import ManualClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer

ANN = "@ann:hs.test"
ROOM = SessionKey("matrix", f"dm-{ANN}")


class Careless(OwnerContact):
    """Writes where the owner once was alone, as it was done."""

    async def reach(self, *, topic: str = "") -> ContactResult:
        return ContactResult(await self.get())


class Away(LoopbackChannel):
    """Has lost its server, so it cannot say who is in a room."""

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        raise ChannelUnavailable("no connection")


def said(number: int, **more: object) -> InboundMessage:
    values = {
        "channel": "matrix",
        "account": "bot",
        "native_id": f"n{number}",
        "session": ROOM,
        "sender": Sender(address=ANN, verified=True),
        "text": "hello",
        "received_at": ManualClock().now(),
        "audience": Audience.DIRECT,
    }
    return InboundMessage.model_validate(values | more)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as opened:
        yield opened


async def notes_of(store: SqliteQueue, kind: type[OwnerContact], channel: LoopbackChannel) -> OwnerAlerts:
    """Notes to an owner who has spoken, with a mail in quarantine and an alert to be told."""
    target = kind(store.state, channels={"matrix": channel})
    await target.learn(said(1))
    kept = Pending(
        said(
            2,
            channel="email",
            account="bot@mail.test",
            session=SessionKey("email", "x"),
            context={"quarantine": "x"},
        ),
        quarantine="sender_not_verified",
    )
    await store.inbox.accept("email", "bot@mail.test", [kept], {})
    notes = OwnerAlerts(
        store=store,
        target=target,
        notifier=OwnerNotifier(store, target, ManualClock()),
        clock=ManualClock(),
    )
    notes.alert("brake", "stopped")
    return notes


async def once(notes: OwnerAlerts) -> None:
    """Let it tell what it will."""
    with anyio.move_on_after(0.3):
        await notes.run()


@pytest.mark.parametrize("kind", [OwnerContact, Careless])
async def test_a_note_is_not_put_where_others_read(store: SqliteQueue, kind: type[OwnerContact]) -> None:
    """Nothing while a guest is there; both come when the owner is alone again."""
    server = LoopbackServer()
    notes = await notes_of(store, kind, LoopbackChannel(server, name="matrix"))
    server.groups.add(ROOM.conversation)
    await once(notes)
    heard = [row.message.text for row in await store.outbox.rows()]
    if kind is Careless:
        assert len(heard) == 2, "the control puts both there"
        return
    assert heard == []
    server.groups.clear()
    await once(notes)
    rows = await store.outbox.rows()
    assert sorted("quarantined" in row.message.text for row in rows) == [False, True]
    assert {row.message.session for row in rows} == {ROOM}


async def test_an_alert_waits_for_a_channel_that_cannot_say_who_reads(store: SqliteQueue) -> None:
    """It is kept and told later, not dropped."""
    server = LoopbackServer()
    notes = await notes_of(store, OwnerContact, Away(server, name="matrix"))
    assert await notes._deliver_alerts() == ASK_AGAIN_S
    assert await store.outbox.rows() == []
    notes.target.channels = {"matrix": LoopbackChannel(server, name="matrix")}
    await notes._deliver_alerts()
    (row,) = await store.outbox.rows()
    assert row.message.text == "stopped"
