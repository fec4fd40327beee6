"""
Encryption as a person with Element sees it: matrix-js-sdk with its Rust crypto against the channel.

nio talking to nio hides every interoperability bug, so what a person sees (shields, unreadable messages,
verification) is judged by another implementation.
"""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from agent_core.messages import Audience
from devservers import MatrixPeer
from tests.integration.element.client import Person
from tests.integration.matrix_bot import call
from tests.integration.secret_peer import SecretPeer


@pytest.fixture
def person(modules, synapse, fresh_credentials):
    """Brings up Element-like devices; without a login, that of a new account."""

    @asynccontextmanager
    async def up(login=None):
        async with Person.up(modules, synapse.url, login or fresh_credentials("uma")) as one:
            yield one

    return up


@pytest.fixture
def account(fresh_credentials):
    return fresh_credentials("uma")


async def secret_room(uma, bot, **settings):
    room = await uma.do("create", invite=[bot.user_id], encrypted=True, **settings)
    await uma.do("joined", room=room, user=bot.user_id)
    return room


async def asked(uma, bot, room, text="What is a squid?"):
    """Something that the person says, as the channel hands it over."""
    already = len(bot.inbox.accepted)
    event_id = await uma.do("send", room=room, text=text)
    await bot.inbox.until_accepted(already + 1)
    found = bot.inbox.accepted[-1]
    assert (found.native_id, found.text) == (event_id, text)
    return found


async def answered(uma, bot, channel, room, text="A mollusc."):
    """An answer of the channel, as the person's client sees it."""
    await channel.deliver(bot.message(room, text), uncertain=bot.mark)
    return await uma.answer(text)


def is_good(event):
    """Encrypted, readable, and without any shield."""
    return event["wire"] == "m.room.encrypted" and event["shield"] == 0 and not event["unreadable"]


@pytest.mark.parametrize("version", ["11", "12"])
async def test_an_encrypted_conversation_has_no_shield(make_bot, person, account, version):
    """Question and answer are encrypted, both are read, and the bot's answer carries no warning (M3, M4)."""
    bot = make_bot(allow_from=[account.user_id])
    async with bot.up() as channel, person(account) as uma:
        await uma.do("bootstrap", password=account.password)
        room = await secret_room(uma, bot, version=version)
        question = await asked(uma, bot, room)
        answer = await answered(uma, bot, channel, room)
        # And to clients that exclude everything that is not signed by its owner.
        await uma.do("exclude", on=True)
        await uma.do("discard", room=room)
        await asked(uma, bot, room, "And a cuttlefish?")
        strict = await answered(uma, bot, channel, room, "Another one.")

    assert question.audience is Audience.DIRECT
    assert is_good(answer)
    assert is_good(strict)
    assert (bot.folder / "cross_signing.json").stat().st_mode & 0o777 == 0o600
    assert (bot.folder / "pickle_key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("where", "version"), [("in the room", "11"), ("in the room", "12"), ("between devices", "12")]
)
async def test_emoji_verification_makes_the_bot_trusted(make_bot, person, account, where, version, capsys):
    """Both sides show the same seven emoji, and the person's client trusts the bot's identity afterwards (M5)."""
    bot = make_bot(allow_from=[account.user_id])
    async with bot.up(), person(account) as uma:
        await uma.do("bootstrap", password=account.password)
        room = await secret_room(uma, bot, version=version)
        await asked(uma, bot, room)
        before = await uma.do("trust", user=bot.user_id)
        device = bot.inbox.facts[-1]["device"]
        place = {"room": room} if where == "in the room" else {"device": device}
        outcome = await uma.do("verify", user=bot.user_id, **place)
        with anyio.move_on_after(10):
            while not (after := await uma.do("trust", user=bot.user_id)):
                await anyio.sleep(0.1)

    assert (before, after) == (False, True)
    assert outcome["done"]
    assert len(outcome["emoji"]) == 7
    assert "  ".join(outcome["emoji"]) in capsys.readouterr().out


async def test_a_restart_after_a_kill_reads_and_answers_everything(make_bot, person, account):
    """Eight encrypted messages while the bot is dead: each is read once, in order, and answers have no shield (M9c)."""
    bot = make_bot(allow_from=[account.user_id])
    async with person(account) as uma:
        async with bot.up():
            room = await secret_room(uma, bot)
            await asked(uma, bot, room, "before")
        texts = [f"message {number}" for number in range(8)]
        for text in texts:
            await uma.do("send", room=room, text=text)
        async with bot.up() as channel:
            await bot.inbox.until_accepted(9)
            answer = await answered(uma, bot, channel, room)

    assert bot.inbox.texts == ["before", *texts]
    assert is_good(answer)


@pytest.mark.parametrize("how", ["revoked", "store lost"])
async def test_a_new_device_of_the_bot_is_trusted_at_once(make_bot, person, account, synapse, how):
    """A device that had to be replaced is signed by the same identity: no shield, nothing to confirm (M16, M20)."""
    bot = make_bot(allow_from=[account.user_id])
    async with person(account) as uma:
        await uma.do("bootstrap", password=account.password)
        async with bot.up() as channel:
            room = await secret_room(uma, bot)
            await asked(uma, bot, room)
            await answered(uma, bot, channel, room)
            before = bot.inbox.facts[-1]["device"]
        if how == "revoked":
            everywhere = await call(MatrixPeer.login, synapse.url, bot.user_id, bot.credentials.password)
            await call(everywhere.call, "POST", "/logout/all", {})
        else:
            next(bot.folder.glob("crypto-*.db")).unlink()
        async with bot.up() as channel:
            await asked(uma, bot, room, "Are you still there?")
            answer = await answered(uma, bot, channel, room, "Yes.")
            after = bot.inbox.facts[-1]["device"]

    assert after != before
    assert is_good(answer)


async def test_without_a_signature_the_shield_would_be_red(make_bot, person, account):
    """
    What the checks above look at: a bot whose device is not signed gets the red shield, and clients that exclude
    such devices do not show its words at all.
    """
    bot = make_bot(allow_from=[account.user_id])
    async with bot.up() as channel, person(account) as uma:
        room = await secret_room(uma, bot)
        await asked(uma, bot, room)
        # A device that does not sign itself, as one of plain nio would be.
        login = await call(MatrixPeer.login, bot.url, bot.user_id, bot.credentials.password)
        peer = SecretPeer(bot.url, login, bot.folder / "unsigned")
        peer.send(room, "unsigned words", to=account.user_id)
        answer = await uma.answer("unsigned words")
        await uma.do("exclude", on=True)
        excluded = peer.send(room, "excluded words", to=account.user_id)
        hidden = await uma.until(lambda one: one["id"] == excluded and one["unreadable"])
        peer.close()
        assert channel is not None

    assert not is_good(answer)
    assert answer["shield"] == 2
    assert "UNSIGNED_SENDER_DEVICE" in hidden["unreadable"]


async def test_an_identity_made_elsewhere_is_replaced(make_bot, person, account):
    """An account that Element was logged in to before has an identity already; the bot makes its own, once."""
    bot = make_bot(allow_from=[account.user_id])
    async with person(bot.credentials) as operator:
        await operator.do("bootstrap", password=bot.credentials.password)
    async with person(account) as uma:
        async with bot.up() as channel:
            room = await secret_room(uma, bot)
            await asked(uma, bot, room)
            answer = await answered(uma, bot, channel, room)
        kept = (bot.folder / "cross_signing.json").read_text()
        async with bot.up() as channel:
            again = await answered(uma, bot, channel, room, "Still me.")

    assert is_good(answer)
    assert is_good(again)
    assert (bot.folder / "cross_signing.json").read_text() == kept
