"""Whom the owner's messages may go to: found however much was said since, and not where the bot has left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from agent_core.errors import ToolDenied, ToolFailed, ToolRetry
from agent_core.messages import Audience, Sender, SessionKey
from channels.base import ChannelUnavailable
from gateway.proactive.messenger import PER_HOUR, PER_TURN, Messenger, RunMessages
from gateway.routing.access import Access, Alias
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Pending
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, message
from tests.doubles.loopback import LoopbackChannel, LoopbackServer

ANN, BOB, CID, DAN = "@ann:hs.test", "@bob:hs.test", "@cid:hs.test", "@dan:hs.test"
HALL = SessionKey("matrix", "!hall:hs.test")
SINCE = 2_050
"""So many messages of others have come since."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as opened:
        yield opened


def said(person: str, number: int, **more: object) -> Pending:
    sender = Sender(address=person, name="Somebody", verified=True)
    return Pending(message(f"{person}{number}", sender=sender, **more))


def messenger(
    store: SqliteQueue,
    server: LoopbackServer,
    clock: ManualClock | None = None,
    allowed: Sequence[str] = ("*",),
) -> Messenger:
    access = Access([Alias("matrix", ANN)], {"matrix": allowed})
    channel = LoopbackChannel(server, name="matrix")
    return Messenger(store, None, access=access, channels={"matrix": channel}, clock=clock or ManualClock())


def run(messenger: Messenger, here: SessionKey, turn: str) -> RunMessages:
    return RunMessages(messenger, here, turn, "Ann")


def counting(store: SqliteQueue) -> list[int]:
    """How many rows each look at what was written has read from now on."""
    read: list[int] = []
    taken = store.inbox.list_accepted_messages

    async def counted(*given: object, **more: object) -> list[object]:
        found = await taken(*given, **more)
        read.append(len(found))
        return found

    store.inbox.list_accepted_messages = counted
    return read


async def test_who_wrote_long_ago_is_known_and_few_rows_are_read(store: SqliteQueue) -> None:
    """The person, and the room; whoever was let in by hand, or has not written, is not."""
    kept_back = Sender(address=DAN)
    batch = [said(BOB, 0), said(BOB, 1, session=HALL, audience=Audience.GROUP)]
    batch += [Pending(message("d", sender=kept_back), quarantine="sender_not_verified")]
    batch += [said(CID, number) for number in range(SINCE)]
    rows = await store.inbox.accept("matrix", BOT, batch, {})
    await store.inbox.admit(rows[2].id)
    read = counting(store)
    asked = messenger(store, LoopbackServer())
    assert await asked.recipient(f"matrix:{BOB}") == f"matrix:{BOB}"
    assert await asked.recipient(BOB) == f"matrix:{BOB}"
    assert await asked.recipient(f"matrix:{HALL.conversation}") == f"matrix:{HALL.conversation}"
    assert sum(read) < 10
    for nobody in (DAN, "@eve:hs.test", "!nowhere:hs.test"):
        with pytest.raises(ToolRetry, match="not a known recipient"):
            await asked.recipient(f"matrix:{nobody}")


async def test_of_whoever_is_not_let_in_any_more_nothing_is_read(store: SqliteQueue) -> None:
    """They are not known, however much they have written. The control: somebody who is let in."""
    await store.inbox.accept(
        "matrix", BOT, [said(who, number) for who in (BOB, CID) for number in (1, 2)], {}
    )
    asked, read = messenger(store, LoopbackServer(), allowed=["@*:hs.test"]), counting(store)
    assert await asked.recipient(BOB) == f"matrix:{BOB}"
    assert read == [2]
    read.clear()
    assert not await messenger(store, LoopbackServer(), allowed=[CID])._is_known(f"matrix:{BOB}", BOB)
    assert read == []


async def test_nothing_is_sent_to_a_room_that_the_bot_has_left(store: SqliteQueue) -> None:
    """It would be on its way for ever. The control: before that it goes there."""
    await store.inbox.accept("matrix", BOT, [said(BOB, 1, session=HALL, audience=Audience.GROUP)], {})
    server = LoopbackServer()
    asked = messenger(store, server)
    to, here = f"matrix:{HALL.conversation}", SessionKey("matrix", f"dm-{ANN}")
    assert "on its way" in await run(asked, here, "t").send(to, "hello", (), key="1", origins=())
    server.left.add(HALL.conversation)
    with pytest.raises(ToolFailed, match="no longer in"):
        await run(asked, here, "t").send(to, "hello again", (), key="2", origins=())
    assert [row.message.text for row in await store.outbox.rows()] == ["hello"]


async def test_there_is_a_limit_in_an_hour_and_what_was_posted_is_known(store: SqliteQueue) -> None:
    """By a clock that nobody sets. A step that is done again posts nothing, and is no message more."""
    await store.inbox.accept("matrix", BOT, [said(BOB, 1)], {})
    clock, to, here = ManualClock(), f"matrix:{BOB}", SessionKey("matrix", f"dm-{ANN}")
    mine = messenger(store, LoopbackServer(), clock)
    for number in range(PER_HOUR):
        assert not await run(mine, here, f"t{number}").is_posted("1")
        for _ in range(2):
            await run(mine, here, f"t{number}").send(to, f"hello {number}", (), key="1", origins=())
        assert await run(mine, here, f"t{number}").is_posted("1")
    with pytest.raises(ToolDenied, match="in the last hour"):
        await run(mine, here, "more").send(to, "hello", (), key="1", origins=())
    assert len(await store.outbox.rows(limit=100)) == PER_HOUR
    clock.advance(3601)
    assert "on its way" in await run(mine, here, "more").send(to, "hello", (), key="1", origins=())


async def test_there_is_a_limit_in_a_turn(store: SqliteQueue) -> None:
    """The control: another turn may go on."""
    await store.inbox.accept("matrix", BOT, [said(BOB, 1)], {})
    to, here = f"matrix:{BOB}", SessionKey("matrix", f"dm-{ANN}")
    mine = messenger(store, LoopbackServer())
    for number in range(PER_TURN):
        await run(mine, here, "t").send(to, "hello", (), key=f"{number}", origins=())
    with pytest.raises(ToolDenied, match="in this turn"):
        await run(mine, here, "t").send(to, "hello", (), key="more", origins=())
    assert "on its way" in await run(mine, here, "u").send(to, "hello", (), key="1", origins=())


class Away(LoopbackChannel):
    """The channel of an account that another process has."""

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        raise ChannelUnavailable("not connected to the homeserver yet")

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        raise ChannelUnavailable("not connected to the homeserver yet")

    async def is_in(self, session: SessionKey) -> bool:
        raise ChannelUnavailable("not connected to the homeserver yet")


class TestContacts:
    """People in the owner's address book, who have never written."""

    FOUND = {"bob": {"Bob@corp.test": "Bob Miller"}, "bob@corp.test": {"bob@corp.test": "Bob Miller"}}  # noqa: RUF012

    def asked(self, store: SqliteQueue, *, style: bool = True, broken: bool = False) -> Messenger:
        async def find(wanted: str) -> dict[str, str]:
            if broken:
                raise ToolFailed("The calendar server is away.")
            return self.FOUND.get(wanted.lower(), {})

        access = Access([Alias("email", "ann@mail.test")], {"email": ["cid@mail.test"]})
        channel = LoopbackChannel(LoopbackServer(), name="email", email_style=style)
        return Messenger(
            store,
            None,
            access=access,
            channels={"email": channel},
            clock=ManualClock(),
            find_contacts=find,
        )

    @pytest.mark.parametrize("to", ["Bob", "email:bob", "bob@corp.test", "email:BOB@corp.test"])
    async def test_they_are_found_by_name_and_address(self, store: SqliteQueue, to: str) -> None:
        assert await self.asked(store).recipient(to) == "email:bob@corp.test"

    @pytest.mark.parametrize("to", ["Eve", "eve@corp.test", "email:eve@corp.test"])
    async def test_whoever_is_not_in_it_is_not_known(self, store: SqliteQueue, to: str) -> None:
        with pytest.raises(ToolRetry, match="not a known recipient"):
            await self.asked(store).recipient(to)

    async def test_of_two_with_a_name_it_is_asked_who_is_meant(
        self, store: SqliteQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        two = {"bob": {"bob@corp.test": "Bob Miller", "bob@home.test": "Bob Smith"}}
        monkeypatch.setattr(self.__class__, "FOUND", two)
        with pytest.raises(ToolRetry, match=r"can be email:bob@corp.test \(Bob Miller\), email:bob@home"):
            await self.asked(store).recipient("bob")

    async def test_a_chat_has_no_contacts(self, store: SqliteQueue) -> None:
        with pytest.raises(ToolRetry, match="not a known recipient"):
            await self.asked(store, style=False).recipient("email:bob@corp.test")

    async def test_an_address_book_that_is_away_hides_nobody_else(self, store: SqliteQueue) -> None:
        asked = self.asked(store, broken=True)
        assert await asked.recipient("email:cid@mail.test") == "email:cid@mail.test"
        with pytest.raises(ToolFailed, match="is away"):
            await asked.recipient("Bob")
