"""
Somebody without any power in a room sent an encrypted event whose inner type was ``m.room.redaction`` and named the
owner's question. No homeserver can check that; the bot obeyed, and the question got neither answer nor apology, in
plain rooms too. Lines of the group context could be removed in the same way, and a redaction in a room of one's own
made the bot forget a message of another room that waited for its key.
"""

from __future__ import annotations

import json
import secrets

import anyio
import pytest

from channels.matrix.crypto.key_types import MustBeUnencrypted
from channels.matrix.crypto.olm_machine import decrypted_event
from channels.matrix.crypto.undecryptable import UndecryptableEvents
from channels.matrix.events.edits import Senders, redacts
from channels.matrix.events.inbound_events import Skip
from tests.doubles.homeserver import text
from tests.integration.matrix_bot import Bot, call, wait_until
from tests.integration.matrix_talk import asked, lines, mentioning, redact
from tests.integration.secret_talk import secret_peers
from tests.scripted_rooms import CAROL, MENTION, Desk, redaction
from tests.unit.channels.matrix.test_inbound import ALICE, ROOM, rooms_with

MEGOLM = {"algorithm": "m.megolm.v1.aes-sha2"}


@pytest.fixture
def bot(synapse, fresh_credentials, tmp_path):
    return Bot(fresh_credentials("bot"), synapse.url, tmp_path / "bot", allow_from=["@*:hs.test"])


@pytest.fixture
def make_peer(synapse, fresh_credentials, tmp_path):
    with secret_peers(synapse, fresh_credentials, tmp_path) as make:
        yield make


@pytest.mark.integration
@pytest.mark.parametrize(("version", "encrypted"), [("10", False), ("12", True)])
async def test_nobody_takes_back_what_another_has_said(bot, make_peer, version, encrypted):
    """Mallory, of power 0, withdraws neither the question nor what was said before it; the owner's redaction does."""
    nia, mallory = make_peer(), make_peer()
    async with bot.up():
        room = await call(nia.peer.create_room, [bot.user_id, mallory.user_id], room_version=version)
        if encrypted:
            await call(nia.peer.call, "PUT", f"/rooms/{room}/state/m.room.encryption/", MEGOLM)
        await call(mallory.peer.join, room)
        await wait_until(nia.peer, lambda: bot.user_id in nia.peer.members(room))
        said = await asked(bot, nia.peer, room, "it is blue")
        question = await asked(bot, nia.peer, room, "what colour?", **mentioning(bot))
        for target in (said.native_id, question.native_id):
            mallory.send(room, "x", to=bot.user_id, kind="m.room.redaction", redacts=target)
        later = await asked(bot, nia.peer, room, "and now?", **mentioning(bot))
        mallory.send(room, "x", to=bot.user_id, kind="m.room.redaction", redacts=later.native_id)
        mallory.send(room, "the last word", to=bot.user_id)
        await bot.inbox.until(lambda inbox: "the last word" in inbox.texts)
        assert bot.inbox.amendments == []
        await redact(nia.peer, room, later.native_id)
        with anyio.fail_after(60):
            await bot.inbox.until(lambda inbox: inbox.amendments)

    assert [one.native_id for one in bot.inbox.amendments] == [later.native_id]
    assert lines(question) == [("talk", nia.user_id, "it is blue")]


@pytest.mark.integration
async def test_what_was_said_before_stays_in_the_context(bot, make_peer):
    """A redaction inside of an encrypted event removes no line of what a group has said."""
    nia, mallory = make_peer(), make_peer()
    async with bot.up():
        room = await call(nia.peer.create_room, [bot.user_id, mallory.user_id])
        await call(mallory.peer.join, room)
        await wait_until(nia.peer, lambda: bot.user_id in nia.peer.members(room))
        said = await asked(bot, nia.peer, room, "it is blue")
        mallory.send(room, "x", to=bot.user_id, kind="m.room.redaction", redacts=said.native_id)
        question = await asked(bot, nia.peer, room, "what colour?", **mentioning(bot))

    assert lines(question) == [("talk", nia.user_id, "it is blue")]


MEANT = ["m.room.message", "m.sticker", "m.reaction", "m.key.verification.start"]


@pytest.mark.parametrize(
    "kind", [*MEANT, "m.room.redaction", "m.room.member", "m.room.encrypted", "m.call.invite"]
)
def test_what_means_something_inside_of_an_encrypted_event(kind):
    """Messages, stickers, reactions and verifications; nothing that a homeserver would have to check."""
    event = {"type": "m.room.encrypted", "event_id": "$1", "sender": ALICE, "content": {}}
    inner = json.dumps({"room_id": ROOM, "type": kind, "content": {"redacts": "$2"}})

    if kind in MEANT:
        assert decrypted_event(ROOM, event, event["content"], inner)["type"] == kind
    else:
        with pytest.raises(MustBeUnencrypted, match=kind):
            decrypted_event(ROOM, event, event["content"], inner)


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        ("1", "$beside"),
        ("10", "$beside"),
        ("11", "$inside"),
        ("12", "$inside"),
        ("org.other", "$inside"),
        ("", ""),
    ],
)
def test_a_redaction_that_names_two_events(version, taken):
    """The one counts that the homeserver has looked at; where that is not known, none."""
    event = {**redaction("$inside"), "redacts": "$beside"}

    assert redacts(event, version) == taken


async def test_the_version_of_a_room_decides_what_is_taken_back():
    """In a room of version 10 somebody redacts their own event and names Alice's in the content."""
    registry = rooms_with(ALICE, CAROL)
    create = {"type": "m.room.create", "state_key": "", "content": {"room_version": "10"}}
    registry.get(ROOM).state(create)
    desk = Desk(registry)
    await desk.read(text("$hers", sender=ALICE))
    await desk.read(text("$own", sender=CAROL))
    found = await desk.read({**redaction("$hers", CAROL), "redacts": "$own"})

    assert (found.kind, found.native_id, found.sender) == ("withdraw", "$own", CAROL)


def test_a_message_waits_for_its_key_whatever_is_redacted_elsewhere():
    """A redaction in another room drops no reference; one in its own room does."""
    waiting = UndecryptableEvents()
    waiting.add(ROOM, "$1", secrets.token_hex(4), sender=ALICE, now=0.0)
    waiting.drop_from("!mallorys:hs.test", "$1", ALICE)
    waiting.drop_from(ROOM, "$1", CAROL)
    assert len(waiting) == 1
    waiting.drop_from(ROOM, "$1", ALICE)
    assert len(waiting) == 0


@pytest.mark.parametrize(("power", "left"), [(0, ["it is blue"]), (50, [])])
async def test_a_redaction_that_a_careless_homeserver_lets_through(power, left):
    """In clear, too, it counts only of the sender or of who may redact: for questions and for the group context."""
    registry = rooms_with(ALICE, CAROL)
    levels = {"type": "m.room.power_levels", "state_key": "", "content": {"users": {CAROL: power}}}
    registry.get(ROOM).state(levels)
    desk = Desk(registry)
    await desk.read(text("$1", "it is blue"))
    found = await desk.read(redaction("$1", CAROL))
    question = await desk.read(text("$2", "what colour?", **MENTION))

    assert isinstance(found, Skip) is (power == 0)
    assert [line.text for line in question.background] == left


@pytest.mark.parametrize(("by", "gone"), [(CAROL, False), (ALICE, True)])
async def test_what_is_not_known_is_taken_back_by_its_sender_alone(by, gone):
    """A message whose key comes late, or talk of long ago; a homeserver that is less strict than Synapse lets it through."""
    desk = Desk(rooms_with(ALICE, CAROL))
    await desk.read(text("$talk", "it is blue", ALICE))
    desk.conversation._senders = Senders()
    for target in ("$talk", "$late"):
        await desk.read(redaction(target, by))
    question = await desk.read(text("$1", "what colour?", ALICE, **MENTION))

    assert [line.text for line in question.background] == ([] if gone else ["it is blue"])
    assert desk.conversation.is_gone(ROOM, "$late", ALICE) == gone
    assert desk.conversation.is_gone(ROOM, "$late", by)
    assert not desk.conversation.is_gone(ROOM, "$other", None)
