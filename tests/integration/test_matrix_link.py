"""The Matrix channel when things go wrong between it and a real Synapse: faults, logins, refusals."""

from __future__ import annotations

import json
import stat
from datetime import timedelta
from urllib.parse import quote

import pytest

from channels.base import (
    ChannelAuthFailed,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
)
from devservers import MatrixPeer
from tests.integration.matrix_bot import bodies, call, joined_room
from tests.integration.proxy import Fault, FaultProxy


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


async def test_a_long_answer_is_cut_until_it_fits(make_bot, alice):
    """The longest text that capabilities allow is delivered, even if its HTML is enormous; and so is more."""
    bot = make_bot(allow_from=[alice.user_id])
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        limit = channel.capabilities.max_text_bytes
        texts = ("<&" * (limit // 2), "ä**b** " * (limit // 8), "\n" * 10 + "x" * (limit - 10))
        assert all(len(text.encode()) <= limit for text in texts)
        for text in (*texts, "y" * 70_000):
            await channel.deliver(bot.message(room, text), uncertain=bot.mark)
        seen = await bodies(alice, room, bot.user_id)

    assert "".join("".join(seen).split()) == "".join("".join((*texts, "y" * 70_000)).split())
    assert len(seen) > 4


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
            await bot.inbox.until_accepted(3, within_s=60)
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
        await bot.inbox.until_accepted(1, within_s=60)
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
        error = await channel.test_run.until_ended(within_s=60)
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
