"""
Whoever runs a homeserver could make an answer of the bot's own one longer than any that is read, and it came again for
ever: an invitation with megabytes of stripped state, as any stranger may send, left the bot deaf; devices or members
with megabytes beside them left it mute in that room; and what was said in a gap with long events was given up.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as some

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import DeliveryFailed
from channels.matrix.client.homeserver import AnswerTooLong, HttpAnswer
from channels.matrix.client.json_access import Trimmer
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.events.inbound_events import MARK
from channels.matrix.receive.deferred_reading import FETCHING
from channels.matrix.rooms.backfill import members_of
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.encryption_gate import EncryptionGate
from channels.matrix.send.sent_lookup import SentLookup
from devservers.rest import request_json
from tests.clock import EPOCH, ManualClock
from tests.doubles.homeserver import ScriptedHomeserver, member, text
from tests.doubles.inbox import running
from tests.incidents.test_slow_server_of_another import BOT, GUEST, MINE, OWNER, THEIRS, Setup
from tests.incidents.test_thousands_of_devices import Person, private_olm, signed
from tests.integration.matrix_bot import Bot, call
from tests.integration.secret_talk import secret_peers, secret_room, talks
from tests.unit.channels.matrix.test_nio_client import ASK, serving

TOO_LONG = AnswerTooLong("too long", maybe_taken=True)


@pytest.fixture
def it(tmp_path):
    return Setup(tmp_path)


def invitation(size):
    """What a stranger's server makes of an invitation, and the end that our own one puts to it."""
    made_up = [{"type": "m.room.topic", "state_key": "", "sender": GUEST, "content": {"topic": "x" * size}}]
    own = member(BOT, "invite") | {"sender": "@stranger:evil.test"}
    return {"invite_state": {"events": [*made_up, own]}}


class TestSync:
    """The receiving loop, which everybody depends on."""

    async def test_an_answer_that_is_too_long_is_asked_for_in_a_shorter_form(self, it):
        """What cannot be read is refused or left out; everybody else is heard."""
        timeline = {"events": [text("$mine", "hello", OWNER)], "limited": False, "prev_batch": "p"}
        it.server.syncs += [TOO_LONG, TOO_LONG]
        it.server.sync_body(
            rooms={"invite": {"!huge:evil.test": None}, "join": {MINE: {"timeline": timeline}, THEIRS: None}}
        )
        it.server.on("POST", "/leave$", HttpAnswer(200, {}))
        it.says(text("$unread", "and me?", GUEST))
        it.says(text("$next", "and now?", OWNER), room=MINE)
        async with running(it.channel(), it.inbox):
            await it.inbox.until_accepted(2)
            with anyio.fail_after(60):
                while not it.server.asked("POST", "huge.*/leave$"):
                    await anyio.sleep(0.01)

        assert it.ids == ["$mine", "$next"]
        assert not it.server.asked("POST", "/join")
        asked = [(one.since, one.timeline_limit, one.part_bytes) for one in it.server.sync_requests[:4]]
        assert asked == [("s0", 50, None), ("s0", 10, 4 * 2**20), ("s0", 2, 2**20), ("s3", 50, None)]

    async def test_a_room_that_was_cut_out_is_read_from_where_it_was_left(self, it):
        """With the next answer, in order and without loss."""
        there = {"timeline": {"events": [text("$2", "well?", OWNER)], "limited": False, "prev_batch": "p"}}
        closed = {
            "type": "m.room.history_visibility",
            "state_key": "",
            "content": {"history_visibility": "joined"},
        }
        there["state"] = {"events": [closed, member(OWNER), member(GUEST)]}
        it.server.sync_body(rooms={"join": {THEIRS: there}})
        it.server.syncs += [TOO_LONG, TOO_LONG]
        it.server.sync_body(rooms={"join": {THEIRS: None}})
        last = {"timeline": {"events": [text("$4", "and now?", OWNER)], "limited": False, "prev_batch": "p"}}
        it.server.sync_body(rooms={"join": {THEIRS: there | last}})
        it.server.on("GET", "/messages$", HttpAnswer(200, {"chunk": [text("$3", "hello", OWNER)]}))
        async with running(it.channel(), it.inbox):
            await it.inbox.until_accepted(3)
            it.says(text("$5", "thanks", OWNER))
            await it.inbox.until_accepted(4)
            await it.inbox.until(lambda inbox: json.loads(inbox.positions[FETCHING]) == {})

        assert it.ids == ["$2", "$3", "$4", "$5"]
        asked = [(one.since, one.full_state, one.timeline_limit) for one in it.server.sync_requests[:5]]
        assert asked == [
            ("s0", True, 50),
            ("s1", False, 50),
            ("s1", False, 10),
            ("s1", False, 2),
            ("s4", True, 50),
        ]
        assert it.server.asked("GET", "/messages$")[0].query["from"] == "s1"

    async def test_a_room_that_stays_too_long_is_asked_for_once(self, it):
        """Others are heard as before."""
        it.server.sync_body(rooms={"join": {THEIRS: None}})
        it.server.sync_body(rooms={"join": {THEIRS: None}})
        it.says(text("$mine", "hello", OWNER), room=MINE)
        it.says(text("$next", "and now?", OWNER), room=MINE)
        async with running(it.channel(), it.inbox):
            await it.inbox.until_accepted(2)

        assert it.ids == ["$mine", "$next"]
        assert [one.full_state for one in it.server.sync_requests[:4]] == [True, False, False, False]

    async def test_what_is_too_long_is_cut_out_while_it_comes(self):
        """Invitations of one size that is too long together; one that is short is there as it was."""
        body = {"next_batch": "n", "rooms": {"invite": {"!short:hs.test": invitation(10)}}}
        body["rooms"]["invite"] |= {f"!{number}:evil.test": invitation(12_000_000) for number in range(3)}
        async with serving() as (server, homeserver):
            server.body = json.dumps(body)
            with pytest.raises(AnswerTooLong):
                await homeserver.sync(ASK)
            answer = await homeserver.sync(replace(ASK, timeline_limit=10, part_bytes=4 * 2**20))

        found = answer.body["rooms"]["invite"]
        assert found.pop("!short:hs.test") == invitation(10)
        assert list(found.values()) == [None, None, None]
        assert answer.body["next_batch"] == "n"

    async def test_a_room_that_was_left_out_is_not_taken_for_a_private_one(self):
        """What is not known of it could be anything; when the full state comes again, it may be read after all."""
        rooms = Rooms(BOT)
        here = {"state": {"events": [member(OWNER), member(BOT)]}, "timeline": {"events": []}}
        here |= {"summary": {"m.joined_member_count": 2, "m.invited_member_count": 0}}
        rooms.mark_direct(MINE, OWNER)
        rooms.update({"rooms": {"join": {MINE: here}}})
        assert rooms.is_direct(MINE, OWNER)
        rooms.update({"rooms": {"join": {MINE: None}}})
        rooms.update({"rooms": {"join": {MINE: here}}})
        assert not rooms.is_direct(MINE, OWNER)
        assert rooms.is_overheard(MINE, OWNER)
        rooms.forget()
        rooms.update({"rooms": {"join": {MINE: here}}})
        assert rooms.is_direct(MINE, OWNER)


class TestGap:
    """What a limited timeline has left out."""

    async def test_a_page_that_is_too_long_is_asked_for_in_a_shorter_form(self, it):
        """Nothing that was said beside long events is lost."""

        def page(request):
            if request.query["limit"] == "100":
                raise TOO_LONG
            return HttpAnswer(
                200, {"chunk": [text("$1", "a question", OWNER), text("$2", "x" * 60_000, GUEST)]}
            )

        it.server.on("GET", "/messages$", page)
        timeline = {"events": [text("$3", "well?", OWNER)], "limited": True, "prev_batch": "p"}
        it.server.sync_body(rooms={"join": {THEIRS: {"timeline": timeline}}})
        async with running(it.channel(), it.inbox):
            await it.inbox.until_accepted(3)

        assert it.ids == ["$1", "$2", "$3"]

    async def test_what_was_sent_is_found_beside_long_answers_of_others(self):
        """Otherwise it would wait for ever, because nobody knows whether it has arrived."""
        server = ScriptedHomeserver()
        ours = text("$ours", "an answer", BOT, **{MARK: "name"})

        def page(request):
            if request.query["limit"] == "100":
                raise TOO_LONG
            return HttpAnswer(200, {"chunk": [ours]})

        server.on("GET", "/messages$", page)
        message = OutboundMessage(
            id="1",
            channel="matrix",
            account=BOT,
            session=SessionKey("matrix", THEIRS),
            text="an answer",
            created_at=EPOCH,
        )

        assert await SentLookup(server, BOT).find(message, "name") == "$ours"


class TestEncryption:
    """Who gets the key of a room."""

    @pytest.mark.parametrize("asked", ["query", "claim"])
    async def test_nobodys_keys_make_those_of_others_unreadable(self, tmp_path, asked):
        """At the same server, too: the others get the room's key, and the message is encrypted."""
        names = [f"@person{number}:evil.test" for number in range(7)]
        people = {name: Person(name, 1) for name in (*names, OWNER)}
        guilty = names[random.randrange(7)]
        server = ScriptedHomeserver()

        def query(request):
            if asked == "query" and guilty in request.body["device_keys"]:
                raise TOO_LONG
            return HttpAnswer(
                200, {"device_keys": {one: people[one].devices() for one in request.body["device_keys"]}}
            )

        def claim(request):
            wanted = request.body["one_time_keys"].items()
            if asked == "claim" and guilty in dict(wanted):
                raise TOO_LONG
            return HttpAnswer(
                200, {"one_time_keys": {one: people[one].claimed(keys) for one, keys in wanted}}
            )

        server.on("POST", "/keys/query", query)
        server.on("POST", "/keys/claim", claim)
        server.on("PUT", "/sendToDevice/", HttpAnswer(200, {}))
        machine = private_olm.OlmMachine(tmp_path, BOT, "DEV", "key")
        crypto = EncryptionEngine(
            server, SimpleNamespace(renew=None), tmp_path, lambda _: machine, ManualClock()
        )
        crypto._machine = machine
        try:
            await crypto.encrypt(THEIRS, "m.room.message", {"body": "hi"}, list(people))
        finally:
            machine.close()

        given = {name for one in server.asked("PUT", "/sendToDevice/") for name in one.body["messages"]}
        assert given == people.keys() - {guilty}

    async def test_a_member_of_whom_too_much_is_told_counts(self):
        """Nobody can hide that they are there, nor keep others from being written to."""
        async with serving() as (server, homeserver):
            long = member("@long:evil.test", displayname="x" * 60_000)
            server.body = json.dumps({"chunk": [member(OWNER), long, member(BOT)]})
            gate, given = gate_with(homeserver)
            await gate.prepare(THEIRS, "m.room.message", {"body": "hi"}, encrypted=True)
            server.body = json.dumps({"chunk": [member(f"@{'x' * 200}{n}:evil.test") for n in range(60_000)]})
            with pytest.raises(DeliveryFailed):
                await gate.prepare(MINE, "m.room.message", {"body": "hi"}, encrypted=True)

        assert given == [[OWNER, BOT]]
        rooms = Rooms(BOT)
        rooms.mark_direct(THEIRS, OWNER)
        rooms.update({"rooms": {"join": {THEIRS: {}}}})
        rooms.get(THEIRS).members([member(OWNER), member(BOT)])
        assert rooms.is_direct(THEIRS, OWNER)
        async with serving() as (server, homeserver):
            server.body = json.dumps({"chunk": [member(OWNER), long, member(BOT)]})
            rooms.get(THEIRS).members(await members_of(homeserver, THEIRS))
        assert rooms.get(THEIRS).member_count == 3
        assert not rooms.is_direct(THEIRS, OWNER)


def gate_with(homeserver):
    """A gate that is about to encrypt, and for whom."""
    given = []

    async def encrypt(_room, _kind, _content, members):
        given.append(members)
        return {}

    crypto = SimpleNamespace(encrypt=encrypt)
    return EncryptionGate(homeserver, Rooms(BOT), is_current=lambda: False, crypto=crypto), given


values = some.recursive(
    some.none() | some.integers() | some.text(alphabet='ab[]{}"\\é', max_size=8),
    lambda inner: (
        some.lists(inner, max_size=4) | some.dictionaries(some.text('a"\\{', max_size=3), inner, max_size=4)
    ),
    max_leaves=25,
)


def trimmed(value, depth, max_bytes, at=1):
    if not isinstance(value, dict | list):
        return value
    if at == depth:
        return value if len(json.dumps(value)) <= max_bytes else None
    if isinstance(value, list):
        return [trimmed(one, depth, max_bytes, at + 1) for one in value]
    return {key: trimmed(one, depth, max_bytes, at + 1) for key, one in value.items()}


@given(values, some.integers(2, 5), some.integers(0, 40), some.integers(1, 30))
def test_exactly_what_is_too_long_is_cut_out(value, depth, max_bytes, piece):
    """Wherever the text is cut into pieces, and whatever is in its strings."""
    body = json.dumps([value]).encode()
    trimmer = Trimmer(depth, max_bytes)
    left = b"".join(trimmer.feed(body[place : place + piece]) for place in range(0, len(body), piece))

    assert json.loads(left) == trimmed([value], depth, max_bytes)


@pytest.mark.integration
async def test_the_owner_is_answered_beside_somebody_with_endless_keys(synapse, fresh_credentials, tmp_path):
    """On a real homeserver, which hands on whatever stands beside a device's keys."""
    with secret_peers(synapse, fresh_credentials, tmp_path) as make:
        owner, credentials = make(), fresh_credentials("evil")
        evil = make(credentials)
        bot = Bot(fresh_credentials("bot"), synapse.url, tmp_path / "bot", allow_from=[owner.user_id])
        async with bot.up() as bot.test_channel:
            room = await secret_room(owner, bot)
            await call(owner.peer.invite, room, evil.user_id)
            await call(evil.peer.join, room)
            for number in range(3):
                await call(_one_more_device, synapse.url, credentials, f"EVIL{number}")
            await talks(bot, owner, room, "hello")


def _one_more_device(url, credentials, name):
    login = {"type": "m.login.password", "identifier": {"type": "m.id.user", "user": credentials.user_id}}
    login |= {"password": credentials.password, "device_id": name}
    token = request_json("POST", f"{url}/_matrix/client/v3/login", login)["access_token"]
    person = Person(credentials.user_id, 1)
    person.accounts = {name: person.accounts["D0"]}
    device = {**person.devices()[name], "beside": "x" * 6_000_000}
    del device["signatures"]
    device = signed(person.accounts[name], credentials.user_id, name, device)
    request_json("POST", f"{url}/_matrix/client/v3/keys/upload", {"device_keys": device}, token=token)
