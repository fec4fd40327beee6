"""
What the owner was to know waited until the owner had written to the bot for the first time: there was no direct
conversation to tell it in, and nobody made one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_core.messages import SessionKey
from channels.base import ChannelUnavailable, DeliveryFailed
from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.rooms.direct_rooms import DirectRooms
from channels.matrix.rooms.invites import Invites
from channels.matrix.rooms.room_state import Rooms
from gateway.proactive.owner_alerts import OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.routing.access import Access, Alias
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.clock import LoopClock
from tests.doubles.homeserver import ScriptedHomeserver
from tests.doubles.loopback import LoopbackChannel, LoopbackServer

ANN, MAIL = "@ann:hs.test", "ann@mail.test"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as opened:
        yield opened


class Channel(LoopbackChannel):
    """It counts how often a conversation is asked for, and can refuse."""

    refuses = False
    asked = 0

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        self.asked += 1
        if self.refuses:
            raise DeliveryFailed("there is nobody of this name")
        return await super().direct_session(person, topic=topic)


def channels(*names: str) -> dict[str, Channel]:
    return {name: Channel(LoopbackServer(), name=name) for name in names}


def target_of(store, on, **settings) -> OwnerContact:
    access = Access([Alias("matrix", ANN), Alias("email", MAIL)], {})
    return OwnerContact(store.state, channels=on, access=access, **settings)


def notes_of(store, target) -> OwnerAlerts:
    return OwnerAlerts(
        store=store,
        target=target,
        notifier=OwnerNotifier(store, target, SystemClock()),
        clock=SystemClock(),
    )


async def test_an_alert_before_the_owners_first_words_goes_to_the_owner(store) -> None:
    """To the address in the settings, in a conversation that the channel makes."""
    notes = notes_of(store, target_of(store, channels("email", "matrix")))
    notes.alert("brake", "Something needs you.")
    await notes._deliver_alerts()

    [row] = await store.outbox.rows()
    assert row.message.session == SessionKey("matrix", f"dm-{ANN}")


async def test_the_conversation_is_there_from_the_first_start(store) -> None:
    """It is begun without anything to tell, known after a restart, and not begun twice."""
    on = channels("matrix")
    assert await target_of(store, on).begin()
    assert on["matrix"].asked == 1
    again = target_of(store, on)
    assert await again.begin()
    assert on["matrix"].asked == 1

    known = await again.get()
    assert known is not None
    assert (known.session, known.person) == (SessionKey("matrix", f"dm-{ANN}"), ANN)
    assert await store.outbox.rows() == []


async def test_while_the_channel_is_away_it_is_begun_later(store) -> None:
    """And an alert goes by the other channel."""
    on = channels("email", "matrix")
    on["matrix"].away = True
    alone = {"matrix": on["matrix"]}
    assert not await target_of(store, alone).begin()
    assert (await target_of(store, alone).reach()).later
    reached = await target_of(store, on).reach()
    assert reached.target is not None
    assert reached.target.channel == "email"

    on["matrix"].away = False
    assert await target_of(store, alone).begin()


async def test_where_nobody_of_that_name_is_nothing_is_tried_for_ever(store) -> None:
    """The other channel is taken; without one the reason is told as before."""
    on = channels("matrix")
    on["matrix"].refuses = True
    target = target_of(store, on)
    assert await target.begin()
    assert (await target.reach()).why == "the owner has no direct conversation yet"


async def test_a_setting_begins_nothing(store) -> None:
    """Whoever has said where has said where."""
    on = channels("matrix")
    assert await target_of(store, on, setting=f"email:{MAIL}").begin()
    assert on["matrix"].asked == 0


async def test_the_owners_own_invitation_makes_a_second_room_needless() -> None:
    """While it is being followed none is made; one that goes nowhere is not waited for."""
    bot = "@bot:hs.test"
    server, rooms = ScriptedHomeserver(), Rooms(bot)
    server.on("POST", "/createRoom$", HttpAnswer(200, {"room_id": "!made:hs.test"}))
    server.on("PUT", "m.direct$", HttpAnswer(200, {}))
    invites = Invites(server, rooms, LoopClock(), user_id=bot, may_invite=lambda _: True)

    async def save(_: object) -> None:
        """Nothing is kept here."""

    directs = DirectRooms(server, rooms, save, user_id=bot, encrypted=False, expects=invites.expects)
    content = {"membership": "invite", "is_direct": True}
    state = {"type": "m.room.member", "state_key": bot, "sender": ANN, "content": content}
    invites.learn({"rooms": {"invite": {"!theirs:hs.test": {"invite_state": {"events": [state]}}}}})
    with pytest.raises(ChannelUnavailable):
        await directs.room_with(ANN)
    assert server.asked("POST", "/createRoom$") == []

    for _ in range(3):
        invites._progress["!theirs:hs.test"].backoff.note_failure(random=0.5)
    assert await directs.room_with(ANN) == "!made:hs.test"
