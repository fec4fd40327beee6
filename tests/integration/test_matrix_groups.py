"""Rooms of several, with a whole gateway behind a real homeserver: who is answered, robots, and being put out."""

from __future__ import annotations

from urllib.parse import quote

import anyio
import pytest

from tests.integration.matrix_bot import bot_joined, call
from tests.integration.matrix_house import open_house
from tests.integration.matrix_person import KINDS, Person, room_of_kind
from tests.integration.proxy import FaultProxy
from tests.integration.secret_peer import SecretPeer

MEGOLM = {"algorithm": "m.megolm.v1.aes-sha2"}


@pytest.fixture
def nia(synapse, fresh_credentials, tmp_path):
    peer = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    yield peer
    peer.close()


async def group(nia, bot_ids, version, *, encrypted, others=()):
    """A group of that kind with the bots and some others in it."""
    room = await call(nia.peer.create_room, bot_ids, is_direct=False, room_version=version)
    if encrypted:
        await call(nia.peer.call, "PUT", f"/rooms/{quote(room)}/state/m.room.encryption/", MEGOLM)
    for bot_id in bot_ids:
        await call(bot_joined, nia.peer, room, bot_id)
    for other in others:
        await call(nia.peer.invite, room, other.user_id)
        await call(other.join, room)
    return room


@pytest.mark.parametrize(("version", "encrypted"), KINDS)
async def test_who_is_meant_in_a_group(
    synapse, fresh_credentials, fresh_user, nia, tmp_path, version, encrypted
):
    """M23: silent without a mention and at ``@room``; answered at a mention, at a pill and, by setting, at a name."""
    carol, bot = await call(fresh_user, "carol"), fresh_credentials("bot")
    script = ("to the mention", "to the pill", "to the name", "last")
    settings = {"allow": [nia], "mention_by_name": True}
    async with open_house(synapse.url, bot, tmp_path / "home", *script, **settings) as there:
        room = await group(nia, [bot.user_id], version, encrypted=encrypted, others=[carol])
        person = Person(nia, room, bot.user_id, encrypted=encrypted)
        pill = f'<a href="https://matrix.to/#/{bot.user_id}">the bot</a>: hello'
        name = bot.user_id.removeprefix("@").partition(":")[0]
        await person.say("just talking")
        await person.say("hello there", **{"m.mentions": {"user_ids": [bot.user_id]}})
        await person.until_heard(1)
        await person.say("@room listen", **{"m.mentions": {"room": True}})
        await person.say("the bot: hello", format="org.matrix.custom.html", formatted_body=pill)
        await person.until_heard(2)
        await person.say("talking about others", **{"m.mentions": {"user_ids": [carol.user_id]}})
        await person.say(f"{name}, are you there?")
        await person.until_heard(3)
        await person.say("never mind")
        await person.say("done?", **{"m.mentions": {"user_ids": [bot.user_id]}})
        said = await person.until_heard(4)
        questions = await there.asked(4)

    assert [text for _, _, text in said] == list(script)
    assert [wire for wire, _, _ in said] == ["m.room.encrypted" if encrypted else "m.room.message"] * 4
    assert len(questions) == 4


async def test_two_bots_in_one_room(synapse, fresh_credentials, nia, tmp_path):
    """M28: in a room of each kind both answer everything that people say there, and neither ever answers the other."""
    one, two = fresh_credentials("bot"), fresh_credentials("bot")
    everybody = ["@*:hs.test"]
    models = [[f"{name} {number}" for number in range(20)] for name in ("one", "two")]
    settings = {"allow": [], "group_policy": "open", "allow_from": everybody}
    async with (
        open_house(synapse.url, one, tmp_path / "one", *models[0], **settings) as first,
        open_house(synapse.url, two, tmp_path / "two", *models[1], **settings) as second,
    ):
        asked = 0
        for version, encrypted in KINDS:
            room = await group(nia, [one.user_id, two.user_id], version, encrypted=encrypted)
            for number in (1, 2):
                if encrypted:
                    await call(nia.send, room, f"q{number}", to=[one.user_id, two.user_id])
                else:
                    await call(nia.peer.send, room, f"q{number}")
                asked += 1
                await first.asked(asked, within_s=60)
                await second.asked(asked, within_s=60)
        await anyio.sleep(2)
        counts = len(first.model.requests), len(second.model.requests)

    assert counts == (2 * len(KINDS), 2 * len(KINDS))


@pytest.mark.parametrize(("version", "encrypted"), KINDS)
async def test_put_out_while_it_works(synapse, fresh_credentials, nia, tmp_path, version, encrypted):
    """M29: the work is cancelled at once, nothing is sent, and the server is not asked again and again."""
    bot, how = fresh_credentials("bot"), "kick" if (version == "11") is encrypted else "ban"
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        script = ([60.0, "never"], "elsewhere")
        async with open_house(proxy.url, bot, tmp_path / "home", *script, allow=[nia]) as there:
            room = await group(nia, [bot.user_id], version, encrypted=encrypted)
            person = Person(nia, room, bot.user_id, encrypted=encrypted)
            await person.say("work!", **{"m.mentions": {"user_ids": [bot.user_id]}})
            await there.asked(1)
            assert there.model.open == 1
            before = len(proxy.seen)
            await call(nia.peer.call, "POST", f"/rooms/{quote(room)}/{how}", {"user_id": bot.user_id})
            with anyio.fail_after(60):
                while there.model.open:
                    await anyio.sleep(0.05)
            other = await group(nia, [bot.user_id], "12", encrypted=False)
            await call(nia.peer.send, other, "still well?", **{"m.mentions": {"user_ids": [bot.user_id]}})
            await there.answers(nia.peer, other, 1)
            requests = len(proxy.seen) - before
        said = await person.heard()

    assert said == []
    assert requests < 60


async def test_a_poll_that_says_nothing_and_a_location_in_a_room_with_the_bot_alone(
    synapse, fresh_credentials, nia, tmp_path
):
    """One sentence says what it cannot read, without a model; a location is read, and answered as ever."""
    bot = fresh_credentials("bot")
    async with open_house(synapse.url, bot, tmp_path / "home", "there", "as ever", allow=[nia]) as there:
        room = await there.room(nia.peer)
        where = {"msgtype": "m.location", "body": "here", "geo_uri": "geo:1,2"}
        await call(nia.peer.send_event, room, "m.room.message", where)
        await call(nia.peer.send_event, room, "m.poll.start", {"m.poll": {"question": {"m.text": []}}})
        await call(nia.peer.send, room, "well?")
        said = await there.answers(nia.peer, room, 3)
        assert len(there.model.requests) == 2
        assert "[A location] here geo:1,2" in str(there.model.requests[0])

    told = " ".join(map(str, said))
    assert told.count("I cannot read a poll. Please say it in words.") == 1
    assert (told.count("there"), told.count("as ever")) == (1, 1)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_poll_and_its_result(synapse, fresh_credentials, nia, tmp_path, encrypted):
    """The bot alone is asked the poll; its result is noted when it ends, answered by nobody, and known then."""
    bot, kind = fresh_credentials("bot"), "org.matrix.msc3381.poll"
    words = "org.matrix.msc1767.text"
    async with open_house(synapse.url, bot, tmp_path / "home", "seven", "fine", allow=[nia]) as there:
        room = await room_of_kind(nia, bot.user_id, "11", encrypted=encrypted)

        async def send(what, content):
            if encrypted:
                return await call(nia.send, room, "", to=bot.user_id, kind=f"{kind}.{what}", **content)
            return await call(nia.peer.send_event, room, f"{kind}.{what}", content)

        answers = [{"id": "a", words: "six"}, {"id": "b", words: "seven"}]
        poll = await send("start", {f"{kind}.start": {"question": {words: "When?"}, "answers": answers}})
        person = Person(nia, room, bot.user_id, encrypted=encrypted)
        await person.until_heard(1)
        about = {"m.relates_to": {"rel_type": "m.reference", "event_id": poll}}
        await send("response", {**about, f"{kind}.response": {"answers": ["a"]}})
        await send("response", {**about, f"{kind}.response": {"answers": ["b"]}})
        await send("end", {**about, f"{kind}.end": {}, words: "The poll has ended."})
        await person.say("so?")
        await person.until_heard(2)
        shown = [each.content for each in there.model.requests[-1]]
        assert len(there.model.requests) == 2
    assert "[A poll] When?\n- six\n- seven" in there.model.requests[0][-1].content
    assert any("[The poll “When?” has ended. Votes: seven: 1]" in each for each in shown)
