"""An alert waited for the owner to write first, or for the one channel that was down, though another one reached the owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import Audience, Sender, SessionKey
from channels.base import ChannelUnavailable, LinkState
from channels.email.channel import EmailDirectMessages
from channels.status import ChannelStatus
from gateway.proactive.owner_alerts import OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.routing.access import Access, Alias
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.owner_world import inbound

ANN, MAIL = "@ann:hs.test", "ann@mail.test"
ROOM = SessionKey("matrix", f"dm-{ANN}")
ALIASES = (Alias("matrix", ANN), Alias("email", MAIL))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as opened:
        yield opened


class Chat(LoopbackChannel):
    """A chat in which rooms of two can be made, while it is up."""

    def __init__(self) -> None:
        super().__init__(LoopbackServer(), name="matrix")
        self.is_up = True
        self.crowded: set[SessionKey] = set()

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        if not self.is_up:
            raise ChannelUnavailable("not connected")
        return SessionKey("matrix", f"dm-{person}")

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        if not self.is_up:
            raise ChannelUnavailable("not connected")
        return session not in self.crowded


class Letters(EmailDirectMessages, LoopbackChannel):
    """A mailbox."""


class Scenario:
    """Notes to an owner with two addresses."""

    def __init__(self, store: SqliteQueue, aliases: tuple[Alias, ...] = ALIASES) -> None:
        self.store = store
        self.chat, self.letters = Chat(), Letters(LoopbackServer(), name="email")
        channels: dict[str, Any] = {"email": self.letters, "matrix": self.chat}
        access = Access(aliases, {"matrix": ["*"], "email": ["*"]})
        self.target = OwnerContact(store.state, channels=channels, access=access)
        self.notes = OwnerAlerts(
            store=store,
            target=self.target,
            notifier=OwnerNotifier(store, self.target, SystemClock()),
            clock=SystemClock(),
        )

    def link(self, name: str, state: LinkState) -> None:
        self.notes.note_channel(ChannelStatus(name, "bot", state, datetime.now(UTC)))

    async def told(self) -> list[str]:
        self.notes.alert("brake", "Look.")
        await self.notes._deliver_alerts()
        return [str(row.message.session) for row in await self.store.outbox.rows()]

    async def learn(self) -> None:
        said = inbound(
            0,
            channel="matrix",
            session=ROOM,
            sender=Sender(address=ANN, verified=True),
            audience=Audience.DIRECT,
        )
        await self.target.learn(said)


async def test_a_conversation_is_made(store: SqliteQueue) -> None:
    """The owner has never written: a room of two is made, and where there is no chat a mail is written."""
    assert await Scenario(store).told() == [str(ROOM)]


async def test_by_mail_where_there_is_no_chat(store: SqliteQueue) -> None:
    """Another kind of address is no address on this channel."""
    (told,) = await Scenario(store, ALIASES[1:]).told()
    assert told.startswith("email/thread-")
    assert told.endswith(MAIL)


async def test_another_channel_while_the_usual_one_is_down(store: SqliteQueue) -> None:
    """The known conversation cannot be asked: by mail; up again, it is used again."""
    world = Scenario(store)
    await world.learn()
    world.chat.is_up = False
    world.link("matrix", LinkState.DOWN)
    (told,) = await world.told()
    assert told.endswith(MAIL)


async def test_a_channel_that_is_only_late_is_waited_for(store: SqliteQueue) -> None:
    """The control: at the start, nothing is known to be down, and the alert waits a moment for the usual place."""
    world = Scenario(store)
    await world.learn()
    world.chat.is_up = False
    assert await world.told() == []
    world.chat.is_up = True
    assert await world.told() == [str(ROOM)]


async def test_where_nothing_else_reaches_it_waits_in_the_outbox(store: SqliteQueue) -> None:
    """The only channel is down: the alert goes out there, later."""
    world = Scenario(store, ALIASES[1:])
    world.link("email", LinkState.FAILED)
    (told,) = await world.told()
    assert told.endswith(MAIL)


async def test_a_crowded_conversation_is_none(store: SqliteQueue) -> None:
    """Somebody has come into the known room: another way is taken, and nothing is said there."""
    world = Scenario(store)
    await world.learn()
    world.chat.crowded.add(ROOM)
    world.link("matrix", LinkState.DOWN)
    (told,) = await world.told()
    assert told.endswith(MAIL)
