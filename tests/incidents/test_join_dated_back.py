"""
The owner told the bot something in a room of the two. Later a guest was let in, whose homeserver dated the join
back to 1970, and who answered the old event by its id: the bot quoted to the guest what the owner had said alone,
out of encrypted history too. The same happened to the beginning of a thread, to an edit that was made before the
guest came back, and to a file.
"""

from __future__ import annotations

import secrets

import pytest

from devservers import MatrixPeer
from tests.integration.forger import forging_synapse
from tests.integration.matrix_bot import Bot, call
from tests.integration.matrix_talk import answering, asked, edit_of, in_thread, joined_room, lines, mentioning
from tests.integration.secret_talk import secret_peers, secret_room

pytestmark = [pytest.mark.integration]
SECRET = "the code of the safe is 1234"
IN_1970 = 1000


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    with forging_synapse(tmp_path_factory.mktemp("forging")) as found:
        yield found


@pytest.fixture
def make_person(house):
    def make(name):
        return house[0].register(f"{name}-{secrets.token_hex(4)}", "pw")

    return make


@pytest.fixture
async def alice(house, make_person):
    return await call(MatrixPeer.of, house[0].url, make_person("alice"))


@pytest.fixture
def guest(house):
    return house[1]()


@pytest.fixture
def bot(house, make_person, guest, tmp_path):
    return Bot(
        make_person("bot"), house[0].url, tmp_path / "bot", allow_from=["@*:hs.test"], threads="follow"
    )


def quoted(message):
    return [line for line in lines(message) if line[0] == "quoted"]


async def let_in(peer, guest, room, *, ts=None):
    await call(peer.invite, room, guest.user_id)
    await call(guest.join, room, ts=ts)


async def test_what_was_said_before_a_backdated_join_is_not_quoted(alice, bot, guest):
    """The answer to an old event, and a message in an old thread, bring nothing of it along; for Alice they do."""
    async with bot.up():
        room = await joined_room(alice, bot)
        old = await call(alice.send, room, SECRET)
        await bot.inbox.until_accepted(1)  # while they are two
        await let_in(alice, guest, room, ts=IN_1970)
        reply = await asked(bot, guest, room, "what was that?", **answering(old), **mentioning(bot))
        thread = await asked(bot, guest, room, "and here?", **in_thread(old), **mentioning(bot))
        hers = await asked(bot, alice, room, "what was that?", **answering(old), **mentioning(bot))

    assert lines(reply) == []
    assert lines(thread) == []
    assert lines(hers) == [("quoted", alice.user_id, SECRET)]


async def test_what_was_said_while_somebody_was_there_is_quoted(alice, bot, guest):
    """The control: an event of the time after the join is quoted, however old its server says that it is."""
    async with bot.up():
        room = await joined_room(alice, bot, direct=False)
        await let_in(alice, guest, room)
        said = await call(alice.send, room, "hello all")
        early = await call(guest.send, room, "from 1970", ts=IN_1970)
        reply = await asked(bot, guest, room, "what was that?", **answering(said), **mentioning(bot))
        hers = await asked(bot, alice, room, "and that?", **answering(early), **mentioning(bot))

    assert quoted(reply) == [("quoted", alice.user_id, "hello all")]
    assert quoted(hers) == [("quoted", guest.user_id, "from 1970")]


async def test_an_edit_made_while_somebody_was_away_is_not_quoted(alice, bot, guest):
    """The guest has seen the message and not its edit: the first text is quoted, to Alice the second."""
    async with bot.up():
        room = await joined_room(alice, bot, direct=False)
        await let_in(alice, guest, room)
        said = await call(alice.send, room, "the code is a secret")
        await call(guest.leave, room)
        await call(alice.send_event, room, "m.room.message", edit_of(said, SECRET))
        await let_in(alice, guest, room, ts=IN_1970)
        reply = await asked(bot, guest, room, "what was that?", **answering(said), **mentioning(bot))
        hers = await asked(bot, alice, room, "and that?", **answering(said), **mentioning(bot))

    assert quoted(reply) == [("quoted", alice.user_id, "the code is a secret")]
    assert quoted(hers) == [("quoted", alice.user_id, SECRET)]


async def test_a_file_of_before_is_not_brought_along(alice, bot, guest):
    """A question about a picture of the time before the join comes without it."""
    async with bot.up():
        room = await joined_room(alice, bot)
        file = {"msgtype": "m.file", "body": "plan.pdf", "url": "mxc://hs.test/abc", "info": {"size": 3}}
        old = await call(alice.send_event, room, "m.room.message", file)
        await bot.inbox.until_accepted(1)
        await let_in(alice, guest, room, ts=IN_1970)
        reply = await asked(bot, guest, room, "what does it say?", **answering(old), **mentioning(bot))
        hers = await asked(bot, alice, room, "what does it say?", **answering(old), **mentioning(bot))

    assert (lines(reply), reply.text) == ([], "what does it say?")
    assert lines(hers) == [("quoted", alice.user_id, '[A file is attached: "plan.pdf"]')]


async def test_encrypted_history_is_not_quoted_either(house, make_person, bot, guest, tmp_path):
    """The bot has the keys, the guest never had them."""
    with secret_peers(house[0], lambda _: make_person("nia"), tmp_path) as make:
        nia = make()
        async with bot.up():
            room = await secret_room(nia, bot)
            old = nia.send(room, SECRET, to=bot.user_id)
            await bot.inbox.until_accepted(1)
            await let_in(nia.peer, guest, room, ts=IN_1970)
            reply = await asked(bot, guest, room, "what was that?", **answering(old), **mentioning(bot))

    assert bot.inbox.texts == [SECRET, "what was that?"]
    assert lines(reply) == []
