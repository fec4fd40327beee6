"""The Matrix channel against a real Synapse: nothing lost, nothing doubled, nothing said to the wrong people."""

from __future__ import annotations

import json
import secrets
import stat
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from urllib.parse import quote

import anyio
import anyio.to_thread
import pytest

from agent_core.messages import Audience, OutboundKind, OutboundMessage, SessionKey
from channels.base import (
    ChannelAuthFailed,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
    LinkState,
)
from channels.matrix.channel import MatrixChannel
from channels.matrix.config import MatrixConfig
from devservers import MatrixPeer, Synapse
from gateway.clock import SystemClock
from tests.inbox_double import MemoryInbox, running
from tests.integration.proxy import Fault, FaultProxy

VERSIONS = ["11", "12"]


async def call(function, *args, **kwargs):
    """The peers block; they run in a thread."""
    return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), abandon_on_cancel=True)


class Bot:
    """A Matrix account for the channel, its state folder and its inbox, which survive the channel."""

    def __init__(self, credentials, url, folder, **settings):
        self.credentials = credentials
        self.user_id = credentials.user_id
        self.url = url
        self.folder = folder
        self.settings = settings
        self.inbox = MemoryInbox()
        self.marks = 0

    def config(self, **changes):
        settings = {
            "homeserver": self.url,
            "user_id": self.user_id,
            "password": self.credentials.password,
            **self.settings,
            **changes,
        }
        return MatrixConfig(**settings)

    def channel(self, **changes):
        return MatrixChannel("matrix", self.config(**changes), state_dir=self.folder, clock=SystemClock())

    @asynccontextmanager
    async def up(self, **changes):
        """A channel that runs and has caught up."""
        channel = self.channel(**changes)
        self.inbox.states.clear()
        try:
            async with running(channel, self.inbox) as run:
                channel.test_run = run
                with anyio.fail_after(30):
                    while self.inbox.state is not LinkState.UP and not run.ended.is_set():
                        await anyio.sleep(0.01)
                if run.error is not None:
                    raise run.error
                yield channel
        finally:
            await channel.aclose()

    def message(self, room, text="an answer", **fields):
        values = {
            "id": secrets.token_hex(8),
            "channel": "matrix",
            "account": self.user_id,
            "session": SessionKey("matrix", room),
            "text": text,
            "created_at": SystemClock().now(),
        }
        return OutboundMessage(**{**values, **fields})

    async def mark(self):
        self.marks += 1


@pytest.fixture
def make_bot(synapse, fresh_credentials, tmp_path):
    def make(url=None, **settings):
        credentials = fresh_credentials("bot")
        return Bot(credentials, url or synapse.url, tmp_path / secrets.token_hex(4), **settings)

    return make


@pytest.fixture
async def alice(fresh_user):
    return await call(fresh_user, "alice")


async def joined_room(user, bot, *, version=None, direct=True, name=None):
    """A room with the bot in it; the channel runs and takes the invitation."""
    room = await call(user.create_room, [bot.user_id], is_direct=direct, room_version=version, name=name)
    with anyio.fail_after(15):
        while bot.user_id not in await call(user.members, room):
            await anyio.sleep(0.05)
    return room


async def bodies(user, room, sender):
    return [event.body for event in await call(user.history, room, limit=500) if event.sender == sender]


# ── the main job ──
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_question_arrives_and_the_answer_is_seen_once(make_bot, alice, version):
    """A direct message is accepted with its sender; the answer, delivered three times, is one event."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot, version=version)
        event_id = await call(alice.send, room, "What is a squid?")
        [question] = await bot.inbox.until_accepted(1)
        answer = bot.message(room, "A **mollusc**.", context=question.context)
        receipts = [await channel.deliver(answer, uncertain=bot.mark) for _ in range(3)]
        seen = await call(alice.wait_for_message, lambda event: event.sender == bot.user_id)

    assert question.native_id == event_id
    assert question.text == "What is a squid?"
    assert question.sender.address == alice.user_id
    assert question.sender.verified
    assert question.session == SessionKey("matrix", room)
    assert question.audience is Audience.DIRECT
    assert question.addressed
    assert len({receipt.provider_id for receipt in receipts}) == 1
    assert bot.marks == 3
    assert seen.event_id == receipts[0].provider_id
    assert seen.content["formatted_body"] == "<p>A <strong>mollusc</strong>.</p>"
    assert seen.content["m.mentions"] == {}
    assert await bodies(alice, room, bot.user_id) == ["A **mollusc**."]


async def test_another_id_is_another_event(make_bot, alice):
    """The check above counts events: two messages with the same text are two of them."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        for _ in range(2):
            await channel.deliver(bot.message(room, "same"), uncertain=bot.mark)

    assert await bodies(alice, room, bot.user_id) == ["same", "same"]


async def test_the_question_is_marked_read_and_typing_is_seen(make_bot, alice):
    """Typing appears at the person's client and goes away; the question is marked as read."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        event_id = await call(alice.send, room, "hello?")
        await bot.inbox.until_accepted(1)
        session = SessionKey("matrix", room)
        await channel.typing(session, on=True)
        await wait_until(alice, lambda: alice.typing.get(room) == [bot.user_id])
        await channel.typing(session, on=False)
        await wait_until(alice, lambda: alice.typing.get(room) == [])
        answer = await call(alice.call, "GET", "/sync?timeout=0")
        ephemeral = answer["rooms"]["join"][room]["ephemeral"]["events"]

    receipts = next(event["content"] for event in ephemeral if event["type"] == "m.receipt")
    assert bot.user_id in receipts[event_id]["m.read"]


async def wait_until(user, condition, *, within_s=15):
    with anyio.fail_after(within_s):
        while not condition():
            await call(user.sync, 1.0)


# ── positions ──
async def test_old_history_is_left_alone_at_the_very_first_start(make_bot, alice, synapse):
    """What was said before squidbot's first start is not answered; what comes after it is."""
    bot = make_bot(allow_from=[alice.user_id])
    room = await call(alice.create_room, [bot.user_id], is_direct=True)
    account = await call(MatrixPeer.of, synapse.url, bot.credentials)
    await call(account.join, room)
    for number in range(5):
        await call(alice.send, room, f"old {number}")
    async with bot.up():
        await call(alice.send, room, "new")
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["new"]


async def test_the_first_words_before_the_join_are_taken(make_bot, alice):
    """What the person says between inviting and the bot's joining is the first question."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        pass
    room = await call(alice.create_room, [bot.user_id], is_direct=True)
    await call(alice.send, room, "are you there?")
    async with bot.up():
        await call(bot_joined, alice, room, bot.user_id)
        await call(alice.send, room, "hello")
        await bot.inbox.until_accepted(2)

    assert bot.inbox.texts == ["are you there?", "hello"]


def bot_joined(user, room, user_id):
    deadline = time.monotonic() + 15
    while user_id not in user.members(room):
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_what_was_said_before_the_invitation_is_left_alone(make_bot, alice):
    """A room with a past: only what follows the invitation is read, however much comes before."""
    bot = make_bot(allow_from=[alice.user_id], group_policy="open")
    room = await call(alice.create_room, [], is_direct=False)
    for number in range(5):
        await call(alice.send, room, f"past {number}")
    async with bot.up():
        await call(alice.invite, room, bot.user_id)
        await call(bot_joined, alice, room, bot.user_id)
        await call(alice.send, room, "welcome")
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["welcome"]


@pytest.mark.parametrize("count", [5, 130])
async def test_what_was_said_while_away_arrives_in_order(make_bot, alice, count):
    """A restart resumes: messages of the absence arrive once and in order, also beyond one timeline."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
        await call(alice.send, room, "before")
        await bot.inbox.until_accepted(1)
    expected = ["before"] + [f"message {number}" for number in range(count)]
    for text in expected[1:]:
        await call(alice.send, room, text)
    async with bot.up():
        await bot.inbox.until_accepted(len(expected), within_s=30)
        await call(alice.send, room, "after")
        await bot.inbox.until_accepted(len(expected) + 1)

    assert bot.inbox.texts == [*expected, "after"]
    assert {message.audience for message in bot.inbox.accepted} == {Audience.DIRECT}


async def test_a_timeline_alone_would_lose_messages(make_bot, alice):
    """The absence above is longer than one timeline: without filling the gap, messages are missing."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
    since = bot.inbox.positions["next_batch"]
    for number in range(130):
        await call(alice.send, room, f"message {number}")
    account = await call(MatrixPeer.login, bot.url, bot.user_id, bot.credentials.password)
    query = f"since={since}&filter={quote(json.dumps({'room': {'timeline': {'limit': 50}}}))}"
    answer = await call(account.call, "GET", f"/sync?{query}")
    timeline = answer["rooms"]["join"][room]["timeline"]

    assert timeline["limited"]
    assert len(timeline["events"]) < 130


async def test_an_unaccepted_batch_comes_again(make_bot, alice):
    """If the store fails while a batch is accepted, the same messages come with the next run."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
    await call(alice.send, room, "not to be lost")
    bot.inbox.refuse(RuntimeError("the disk is full"))
    with pytest.raises(RuntimeError, match="disk"):
        async with bot.up():
            pass
    async with bot.up():
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["not to be lost"]


# ── invitations ──
async def test_a_stranger_is_refused(make_bot, fresh_user):
    """An invitation by somebody who is not allowed is declined, and nothing is said."""
    bot = make_bot(allow_from=[])
    stranger = await call(fresh_user, "stranger")
    async with bot.up():
        room = await call(stranger.create_room, [bot.user_id], is_direct=True)
        state = f"/rooms/{quote(room)}/state/m.room.member/{quote(bot.user_id)}"
        with anyio.fail_after(15):
            while (await call(stranger.call, "GET", state))["membership"] != "leave":
                await anyio.sleep(0.05)

    assert await call(stranger.members, room) == {stranger.user_id}
    assert bot.inbox.accepted == []
    assert json.loads(bot.inbox.positions["invites"]) == []


async def test_an_open_invitation_is_retried_after_a_restart(make_bot, alice, synapse):
    """A join that did not work is kept and tried again, although the server does not repeat the invitation."""
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        rule = proxy.add(r"/join$", Fault.STATUS)
        async with bot.up():
            room = await call(alice.create_room, [bot.user_id], is_direct=True)
            with anyio.fail_after(15):
                while not rule.applied:
                    await anyio.sleep(0.05)
        assert [invite["room_id"] for invite in json.loads(bot.inbox.positions["invites"])] == [room]
        proxy.clear()
        async with bot.up():
            await call(bot_joined, alice, room, bot.user_id)
            await call(alice.send, room, "finally")
            [message] = await bot.inbox.until_accepted(1)

    assert message.audience is Audience.DIRECT


# ── who reads along ──
async def test_a_room_of_two_is_not_a_direct_conversation_by_itself(make_bot, alice):
    """Two rooms with the same two people: only the one that was made as direct is so, also after a restart."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        direct = await joined_room(alice, bot, direct=True)
        plain = await joined_room(alice, bot, direct=False)
    await call(alice.send, direct, "in the direct one")
    await call(alice.send, plain, "in the other")
    async with bot.up():
        await bot.inbox.until_accepted(2)
    found = {message.session.conversation: message for message in bot.inbox.accepted}

    assert (found[direct].audience, found[direct].addressed) == (Audience.DIRECT, True)
    assert (found[plain].audience, found[plain].addressed) == (Audience.GROUP, False)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_third_person_makes_it_a_group(make_bot, alice, fresh_user, version):
    """As soon as somebody else is invited, before they join, the conversation counts as a group."""
    bot = make_bot(allow_from=[alice.user_id])
    carol = await call(fresh_user, "carol")
    async with bot.up():
        room = await joined_room(alice, bot, version=version)
        await call(alice.send, room, "alone")
        await bot.inbox.until_accepted(1)
        await call(alice.invite, room, carol.user_id)
        await call(alice.send, room, "not alone")
        await bot.inbox.until_accepted(2)

    assert [message.audience for message in bot.inbox.accepted] == [Audience.DIRECT, Audience.GROUP]


async def test_in_a_group_mentions_count(make_bot, alice, fresh_user):
    """Talk among others is kept as not addressed; mentions in each form and replies to the bot are addressed."""
    bot = make_bot(allow_from=[alice.user_id])
    carol = await call(fresh_user, "carol")
    async with bot.up() as channel:
        room = await joined_room(alice, bot, direct=False)
        await call(alice.invite, room, carol.user_id)
        await call(carol.join, room)
        mine = await channel.deliver(bot.message(room, "hi all"), uncertain=bot.mark)
        bot.inbox.delivered[mine.provider_id] = "outbox-1"
        pill = f'<a href="https://matrix.to/#/{bot.user_id}">Bot</a>: hey'
        sent = [
            ({}, "what do you think, carol?", False),
            ({"m.mentions": {"user_ids": [bot.user_id]}}, "what do you think?", True),
            ({"format": "org.matrix.custom.html", "formatted_body": pill}, "Bot: hey", True),
            ({}, f"{bot.user_id[1:].partition(':')[0]}, your turn", True),
            ({"m.mentions": {"room": True}}, "@room everybody", False),
            ({"m.relates_to": {"m.in_reply_to": {"event_id": mine.provider_id}}}, "why?", True),
        ]
        for content, text, _ in sent:
            await call(alice.send, room, text, **content)
        await bot.inbox.until_accepted(len(sent))

    assert [message.addressed for message in bot.inbox.accepted] == [expected for *_, expected in sent]


async def test_edits_notices_and_odd_events_are_no_questions(make_bot, alice):
    """Edits, notices, unknown types and malformed contents are skipped; the next message still arrives."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        event_id = await call(alice.send, room, "first")
        edit = {"m.relates_to": {"rel_type": "m.replace", "event_id": event_id}}
        await call(
            alice.send,
            room,
            "* changed",
            **edit,
            **{"m.new_content": {"msgtype": "m.text", "body": "changed"}},
        )
        await call(alice.send, room, "I am a robot", msgtype="m.notice")
        await call(alice.send, room, "", format=[1], formatted_body={})
        await call(alice.send, room, "odd", msgtype="org.example.odd", **{"m.relates_to": ["x"]})
        await call(alice.send, room, "odd relations", **{"m.relates_to": {"rel_type": 5, "m.in_reply_to": 7}})
        await call(alice.send_event, room, "org.example.odd", {"body": {"m.relates_to": None}})
        state = f"/rooms/{quote(room)}/state"
        await call(alice.call, "PUT", f"{state}/org.example.odd", {"topic": {"not": ["a", "text"]}})
        await channel.deliver(bot.message(room, "my own words"), uncertain=bot.mark)
        await call(alice.send, room, "last")
        await bot.inbox.until_accepted(3)

    assert bot.inbox.texts == ["first", "odd relations", "last"]


async def test_nothing_is_said_into_an_encrypted_room(make_bot, alice):
    """Plain text never goes into an encrypted room, whether the channel knows of the encryption or must ask."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        state = f"/rooms/{quote(room)}/state/m.room.encryption"
        await call(alice.call, "PUT", state, {"algorithm": "m.megolm.v1.aes-sha2"})
        await call(
            alice.send_event,
            room,
            "m.room.encrypted",
            {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x"},
        )
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("encrypted_messages_unread") == 1)
        with pytest.raises(DeliveryFailed, match="encrypted"):
            await channel.deliver(bot.message(room, "secret"), uncertain=bot.mark)
        await channel.test_run.cancel()
        channel._sending._rooms.forget()
        with pytest.raises(DeliveryFailed, match="encrypted"):
            await channel.deliver(bot.message(room, "secret"), uncertain=bot.mark)

    assert bot.marks == 0
    assert bot.inbox.facts[-1]["encrypted_rooms"] == 1
    assert await bodies(alice, room, bot.user_id) == []
    assert bot.inbox.accepted == []


# ── delivery ──
async def test_a_room_that_was_left_refuses_for_good(make_bot, alice):
    """After a kick the room is forgotten and a delivery fails for good, with words for the operator."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot, direct=False)
        await call(alice.call, "POST", f"/rooms/{quote(room)}/kick", {"user_id": bot.user_id})
        await bot.inbox.until(lambda inbox: inbox.facts[-1].get("rooms") == 0)
        with pytest.raises(DeliveryFailed, match="in room"):
            await channel.deliver(bot.message(room), uncertain=bot.mark)
        with pytest.raises(DeliveryFailed):
            await channel.deliver(bot.message("!nothing:hs.test"), uncertain=bot.mark)


async def test_a_long_answer_fits_and_a_huge_one_is_refused(make_bot, alice):
    """The longest text that capabilities allow is delivered, even if its HTML is enormous; more is refused."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        limit = channel.capabilities.max_text_bytes
        for text in ("<&" * (limit // 2), "ä**b** " * (limit // 8), "\n" * 10 + "x" * (limit - 10)):
            assert len(text.encode()) <= limit
            await channel.deliver(bot.message(room, text), uncertain=bot.mark)
        with pytest.raises(DeliveryFailed, match="too l"):
            await channel.deliver(bot.message(room, "x" * 70_000), uncertain=bot.mark)

    assert len(await bodies(alice, room, bot.user_id)) == 3


async def test_a_lost_answer_is_uncertain_and_the_repetition_makes_no_second_event(make_bot, alice, synapse):
    """The connection is cut after the server accepted, in each way: repeated, there is one event."""
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        async with bot.up() as channel:
            room = await joined_room(alice, bot)
            answer = bot.message(room, "exactly once")
            for fault in (Fault.CUT_AFTER, Fault.CUT_BODY):
                rule = proxy.add(r"/send/m\.room\.message/", fault)
                with pytest.raises(DeliveryUncertain):
                    await channel.deliver(answer, uncertain=bot.mark)
                proxy.remove(rule)
                # aiohttp itself repeats a PUT once when the connection breaks; so at least one.
                assert rule.applied >= 1
            rule = proxy.add(r"/send/m\.room\.message/", Fault.STATUS, status=502)
            with pytest.raises(DeliveryUncertain):
                await channel.deliver(answer, uncertain=bot.mark)
            proxy.remove(rule)
            receipt = await channel.deliver(answer, uncertain=bot.mark)
        history = await call(alice.history, room)

    ours = [event for event in history if event.sender == bot.user_id]
    assert [event.event_id for event in ours] == [receipt.provider_id]


async def test_a_rate_limit_is_passed_on(make_bot, alice, synapse):
    """A 429 is no failure: the pause that the server asks for reaches whoever delivers."""
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        async with bot.up() as channel:
            room = await joined_room(alice, bot)
            proxy.add(
                r"/send/", Fault.STATUS, status=429, times=1, content_type="application/json",
                body='{"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 2500}', headers={"Retry-After": "3"},
            )  # fmt: skip
            with pytest.raises(ChannelUnavailable) as caught:
                await channel.deliver(bot.message(room), uncertain=bot.mark)

    assert caught.value.retry_after_s == 3.0


# ── the link ──
async def test_a_storm_of_errors_is_sat_out(make_bot, alice, synapse):
    """Twelve seconds of 502 pages: fewer than ten requests, and a question afterwards is accepted."""
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        async with bot.up() as channel:
            room = await joined_room(alice, bot)
            begun = time.monotonic()
            rule = proxy.add(r"/sync\?", Fault.STATUS, status=502)
            await call(alice.send, room, "wake up")  # ends the long poll
            await anyio.sleep(12)
            storm = proxy.count(r"/sync\?", since=begun)
            applied = rule.applied
            proxy.remove(rule)
            await call(alice.send, room, "still there?")
            await bot.inbox.until(lambda inbox: "still there?" in inbox.texts, within_s=40)
            await bot.inbox.until_up()
            assert not channel.test_run.ended.is_set()

    assert 1 <= applied
    assert storm < 10
    assert LinkState.DOWN in bot.inbox.states
    assert bot.inbox.texts == ["wake up", "still there?"]


@pytest.mark.parametrize(
    "trouble",
    [
        {"fault": Fault.STATUS, "status": 200, "body": "<html>maintenance</html>"},
        {"fault": Fault.STATUS, "status": 200, "body": "[]", "content_type": "application/json"},
        {"fault": Fault.STATUS, "status": 200, "body": '{"rooms": 5}', "content_type": "application/json"},
        {"fault": Fault.STATUS, "status": 500, "body": '{"errcode": "M_UNKNOWN"}', "content_type": "application/json"},
        {"fault": Fault.CUT_BODY},
        {"fault": Fault.CUT_AFTER},
    ],
)  # fmt: skip
async def test_garbage_answers_lose_nothing(make_bot, alice, synapse, trouble):
    """Whatever `/sync` answers for a while, the run goes on and the messages arrive afterwards."""
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        async with bot.up() as channel:
            room = await joined_room(alice, bot)
            fault = trouble.pop("fault")
            rule = proxy.add(r"/sync\?", fault, times=2, **trouble)
            for number in range(3):
                await call(alice.send, room, f"message {number}")
            await bot.inbox.until_accepted(3, within_s=20)
            assert rule.applied == 2
            assert not channel.test_run.ended.is_set()

    assert bot.inbox.texts == ["message 0", "message 1", "message 2"]


async def test_a_server_that_is_away_is_unavailable(make_bot):
    """Nobody listens: the run ends as unavailable, with plain words, and so does a delivery."""
    bot = make_bot("http://127.0.0.1:9")
    with pytest.raises(ChannelUnavailable, match="cannot be reached"):
        async with bot.up():
            pass
    channel = bot.channel()
    with pytest.raises(ChannelUnavailable):
        await channel.deliver(bot.message("!a:hs.test"), uncertain=bot.mark)

    assert bot.marks == 0


async def test_no_homeserver_at_the_address(make_bot, synapse):
    """An address that answers, but not as a homeserver, is a mistake in the settings."""
    bot = make_bot(f"{synapse.url}/nothing/here")
    with pytest.raises(ChannelMisconfigured, match="homeserver"):
        async with bot.up():
            pass


# ── logging in ──
async def test_the_login_is_kept_and_used_again(make_bot):
    """The token is stored for the owner's eyes only, and the next start makes no second device."""
    bot = make_bot()
    async with bot.up():
        pass
    kept = bot.folder / "session.json"
    before = json.loads(kept.read_text())
    async with bot.up():
        pass

    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert json.loads(kept.read_text()) == before


async def test_a_wrong_password_says_so(make_bot):
    """A refused password ends in ChannelAuthFailed, in words that say what to do."""
    bot = make_bot(password="wrong")
    with pytest.raises(ChannelAuthFailed, match="password") as caught:
        async with bot.up():
            pass

    assert bot.user_id in str(caught.value)
    assert "wrong" not in str(caught.value)


async def test_revoked_tokens_are_replaced_by_the_password(make_bot, alice, synapse):
    """All sessions are revoked while the channel runs: it logs in again and goes on receiving and sending."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        old = json.loads((bot.folder / "session.json").read_text())
        other = await call(MatrixPeer.login, synapse.url, bot.user_id, bot.credentials.password)
        await call(other.call, "POST", "/logout/all", {})
        await channel.deliver(bot.message(room, "still here"), uncertain=bot.mark)
        await call(alice.send, room, "good")
        await bot.inbox.until_accepted(1, within_s=40)
    new = json.loads((bot.folder / "session.json").read_text())

    assert new["access_token"] != old["access_token"]
    assert await bodies(alice, room, bot.user_id) == ["still here"]


async def test_a_token_revoked_while_away_is_replaced_too(make_bot, alice, synapse):
    """The stored token is no longer valid at a start: the channel logs in by password and resumes."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
    other = await call(MatrixPeer.login, synapse.url, bot.user_id, bot.credentials.password)
    await call(other.call, "POST", "/logout/all", {})
    await call(alice.send, room, "while away")
    async with bot.up():
        await bot.inbox.until_accepted(1)

    assert bot.inbox.texts == ["while away"]


async def test_a_message_taken_under_a_lost_device_is_not_sent_again(make_bot, alice, synapse):
    """Accepted, answer lost, device revoked: the repetition under the new device finds the event."""
    async with FaultProxy.in_front_of(synapse.url) as proxy:
        bot = make_bot(proxy.url, allow_from=[alice.user_id])
        async with bot.up() as channel:
            room = await joined_room(alice, bot)
            answer = bot.message(room, "only once")
            rule = proxy.add(r"/send/m\.room\.message/", Fault.CUT_AFTER)
            with pytest.raises(DeliveryUncertain):
                await channel.deliver(answer, uncertain=bot.mark)
            proxy.remove(rule)
            other = await call(MatrixPeer.login, synapse.url, bot.user_id, bot.credentials.password)
            await call(other.call, "POST", "/logout/all", {})
            receipt = await channel.deliver(answer, uncertain=bot.mark)
            never = bot.message(room, "never sent before", created_at=answer.created_at - timedelta(days=2))
            await channel.deliver(never, uncertain=bot.mark)
        history = await call(alice.history, room)

    ours = [event for event in history if event.sender == bot.user_id]
    assert [event.body for event in ours] == ["only once", "never sent before"]
    assert ours[0].event_id == receipt.provider_id


async def test_a_new_device_alone_would_double(make_bot, alice, synapse):
    """A transaction id does not survive its device: the same request from a new one is a second event."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up():
        room = await joined_room(alice, bot)
    for _ in range(2):
        device = await call(MatrixPeer.login, synapse.url, bot.user_id, bot.credentials.password)
        await call(device.send, room, "naive", txn="same")

    assert await bodies(alice, room, bot.user_id) == ["naive", "naive"]


async def test_a_given_token_is_used_and_checked(make_bot, alice):
    """A configured token works; once revoked it ends the run, with words and without a storm."""
    bot = make_bot(allow_from=[alice.user_id])
    given = {
        "password": None,
        "access_token": bot.credentials.access_token,
        "device_id": bot.credentials.device_id,
    }
    async with bot.up(**given) as channel:
        room = await joined_room(alice, bot)
        account = await call(MatrixPeer.of, bot.url, bot.credentials)
        await call(account.call, "POST", "/logout/all", {})
        await call(alice.send, room, "hello?")
        with pytest.raises(ChannelAuthFailed, match="access_token"):
            await channel.deliver(bot.message(room), uncertain=bot.mark)
        error = await channel.test_run.until_ended(within_s=40)
    assert isinstance(error, ChannelAuthFailed)
    with pytest.raises(ChannelAuthFailed, match="access_token"):
        async with bot.up(**given):
            pass
    assert not (bot.folder / "session.json").exists()


async def test_a_token_of_somebody_else_is_a_mistake(make_bot, fresh_credentials):
    """The configured token must belong to the configured user and device."""
    bot = make_bot()
    other = await call(fresh_credentials, "other")
    given = {"password": None, "access_token": other.access_token, "device_id": other.device_id}
    with pytest.raises(ChannelMisconfigured, match="belongs to"):
        async with bot.up(**given):
            pass
    own = {"password": None, "access_token": bot.credentials.access_token, "device_id": "ELSE"}
    with pytest.raises(ChannelMisconfigured, match="device"):
        async with bot.up(**own):
            pass


async def test_soft_logout_keeps_the_device(tmp_path):
    """A server whose tokens live for seconds: the channel goes on, on the same device, and loses nothing."""
    with await call(
        Synapse.start, tmp_path / "hs", overrides={"nonrefreshable_access_token_lifetime": "6s"}
    ) as server:
        credentials = await call(server.register, "bot", "bot-pw")
        bot = Bot(credentials, server.url, tmp_path / "bot")
        async with bot.up():
            session = json.loads((bot.folder / "session.json").read_text())
            await anyio.sleep(8)
            human = await call(server.register, "alice", "alice-pw")
            alice = await call(MatrixPeer.of, server.url, human)
            bot.settings["allow_from"] = [alice.user_id]
        async with bot.up() as channel:
            room = await joined_room(alice, bot)
            await call(alice.send, room, "hello")
            await bot.inbox.until_accepted(1)
            await channel.deliver(bot.message(room, "hello back"), uncertain=bot.mark)
        renewed = json.loads((bot.folder / "session.json").read_text())

    assert renewed["device_id"] == session["device_id"]
    assert renewed["access_token"] != session["access_token"]
    assert bot.inbox.texts == ["hello"]


async def test_an_apology_and_a_notice_look_different(make_bot, alice):
    """Notices are m.notice, so that no other robot answers them; answers are m.text and point back in groups."""
    bot = make_bot(allow_from=[alice.user_id], group_policy="open")
    async with bot.up() as channel:
        room = await joined_room(alice, bot, direct=False)
        event_id = await call(alice.send, room, "hello")
        [question] = await bot.inbox.until_accepted(1)
        context = question.context
        for kind in (OutboundKind.NOTICE, OutboundKind.REPLY):
            await channel.deliver(
                bot.message(room, kind.value, kind=kind, context=context), uncertain=bot.mark
            )
        notice, reply = [e for e in await call(alice.history, room) if e.sender == bot.user_id]

    assert notice.content["msgtype"] == "m.notice"
    assert reply.content["msgtype"] == "m.text"
    assert reply.content["m.relates_to"] == {"m.in_reply_to": {"event_id": event_id}}
    assert reply.content["m.mentions"] == {"user_ids": [alice.user_id]}
