"""What is quoted of a message that is answered: of this room, bounded, and only to who was there when it was said."""

from __future__ import annotations

import pytest

from channels.matrix.client.homeserver import HttpAnswer, LinkBroken
from channels.matrix.receive.reply_context import Asker, ReplyContext, read_plain_event
from tests.doubles.homeserver import member, text
from tests.scripted_rooms import CAROL, MALLORY, MENTION, Desk, answering
from tests.unit.channels.matrix.test_inbound import ALICE, BOT, GROUP, ROOM


# ── quotes ──
async def test_quotes_are_of_this_room_and_bounded():
    """An event of another room is not quoted, a long one is cut, a server that fails costs the quotation only."""
    desk = Desk()
    desk.has(text("$long", "x" * 10_000))
    elsewhere = {**text("$elsewhere"), "room_id": "!other"}
    desk.server.on(
        "GET", "/context/%24elsewhere$", HttpAnswer(200, {"event": elsewhere, "state": [member(ALICE)]})
    )
    desk.server.on("GET", "/context/%24gone$", LinkBroken("cut", maybe_taken=False))
    found = {
        target: (await desk.read(text(f"$to-{target[1:]}", "hm", **answering(target)))).background
        for target in ("$long", "$elsewhere", "$gone", "$unknown")
    }

    [quoted] = found.pop("$long")
    assert len(quoted.text) <= 2000
    assert set(found.values()) == {()}


async def test_a_circle_of_answers_ends():
    """Events that answer each other are quoted a few times and no more."""
    desk = Desk()
    desk.has(text("$a", "one", **answering("$b")))
    desk.has(text("$b", "two", **answering("$a")))
    message = await desk.read(text("$1", "hm", **answering("$a")))

    assert [line.text for line in message.background] == ["one", "two", "one"]
    assert len(desk.server.asked("GET", "/context/")) == 2


async def test_strangers_cost_no_requests():
    """Nothing is asked of anybody for people who may not talk to the bot."""
    desk = Desk(GROUP)
    asked = []
    desk.inbox.delivered_id = lambda provider_id: asked.append(provider_id)
    for number in range(20):
        await desk.read(text(f"${number}", "hm", MALLORY, **answering("$a"), **MENTION))
        relation = {"rel_type": "m.annotation", "event_id": "$a", "key": "x"}
        reaction = {**text(f"$r{number}", sender=MALLORY, **{"m.relates_to": relation}), "type": "m.reaction"}
        await desk.read(reaction)

    assert desk.server.calls == []
    assert asked == []


# ── what the protections are for ──
class Trusting(ReplyContext):
    """As if everybody had always been in the room."""

    async def is_for(self, room_id, seen, asker):
        return True


@pytest.mark.parametrize(("kind", "leaks"), [(ReplyContext, False), (Trusting, True)])
@pytest.mark.parametrize("absent", ["gone", "unknown"])
async def test_what_was_said_before_somebody_came_is_not_for_them(kind, leaks, absent):
    """Carol came later than the secret, or nobody knows when: it is not quoted; the check would see it."""
    desk = Desk(GROUP)
    secret = {**text("$secret", "1234"), "room_id": ROOM, "origin_server_ts": 3000}
    desk.has(secret, absent=[CAROL])
    if absent == "unknown":
        desk.server.on("GET", "/context/", HttpAnswer(200, {"event": secret}))
    quotes = kind(desk.server, GROUP, read_plain_event, user_id=BOT)
    carol, alice = Asker(CAROL, direct=False), Asker(ALICE, direct=False)

    told = (*await quotes.chain(ROOM, "$secret", carol), *await quotes.root(ROOM, "$secret", carol))
    assert any("1234" in line.text for line in told) is leaks
    assert [line.text for line in await quotes.chain(ROOM, "$secret", alice)] == ["1234"]


@pytest.mark.parametrize("absent", [(), (CAROL,)])
async def test_the_file_of_an_event_is_for_who_was_there(absent):
    """What is needed to fetch a file is given only to those who saw its event."""
    desk = Desk(GROUP)
    file = {"msgtype": "m.file", "url": "mxc://hs.test/abc"}
    desk.has(text("$file", "plan.pdf", **file), absent=absent)
    quotes = ReplyContext(desk.server, GROUP, read_plain_event, user_id=BOT)

    assert bool(await quotes.file(ROOM, "$file", Asker(CAROL, direct=False))) is (not absent)


@pytest.mark.parametrize(("direct", "quoted"), [(True, ["hello"]), (False, [])])
async def test_the_first_words_of_the_bot_are_for_who_was_invited(direct, quoted):
    """What the bot said while its one partner was only invited is quoted to them, and in no group."""
    desk = Desk()
    said = {**text("$first", "hello", BOT), "room_id": ROOM}
    desk.server.on("GET", "/context/", HttpAnswer(200, {"event": said, "state": [member(CAROL, "invite")]}))
    quotes = ReplyContext(desk.server, GROUP, read_plain_event, user_id=BOT)

    found = await quotes.chain(ROOM, "$first", Asker(CAROL, direct=direct))
    assert [line.text for line in found] == quoted


async def test_who_was_there_is_quoted_to():
    """What was said while somebody was there is quoted, and the server is asked for that once."""
    desk = Desk(GROUP)
    desk.has({**text("$said", "hello"), "origin_server_ts": 3000})
    for number in range(3):
        message = await desk.read(text(f"${number}", "hm", CAROL, **answering("$said"), **MENTION))
        assert [line.text for line in message.background] == ["hello"]

    assert len(desk.server.asked("GET", "/context/")) == 1


async def test_the_beginning_of_a_thread_is_told_to_the_first_who_may_hear_it():
    """Carol, who came later, has asked in the thread before Alice: for Alice its beginning is told all the same, once."""
    desk = Desk(GROUP, threads="follow")
    desk.has(text("$root", "how it began", BOT), absent=[CAROL])
    in_thread = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$root", "is_falling_back": True}}
    asked = [
        await desk.read(text(f"${number}", "hm", person, **in_thread, **MENTION))
        for number, person in enumerate((CAROL, ALICE, ALICE))
    ]

    assert [[line.text for line in one.background] for one in asked] == [[], ["how it began"], []]
