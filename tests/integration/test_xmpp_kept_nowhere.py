"""XMPP messages that are in no archive while they cannot be kept, and a second program with the account's name."""

from __future__ import annotations

import pytest

pytest.importorskip("slixmpp")

from channels.base import ChannelMisconfigured, ChannelUnavailable, LinkState
from tests import xmpp_server
from tests.doubles.inbox import MemoryInbox, running
from tests.integration.test_xmpp_example import accepted, element, far_side_in, until_up

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(xmpp_server.PROGRAM is None, reason=xmpp_server.MISSING),
]
ROOM_FOR = 100
NO_STORE = "{urn:xmpp:hints}no-store"


async def whisper(far, text):
    return await far.people["alice"].say("squid@localhost", text, element(NO_STORE))


def returned(far):
    return [
        one.get("id")
        for one in far.people["alice"].stanzas
        if one.get("type") == "error" and one.find(".//{*}resource-constraint") is not None
    ]


async def test_what_does_not_fit_goes_back_and_the_rest_is_heard_once_in_order(tmp_path):
    """While nothing can be stored (a full disk); none is dropped without a word."""
    async with far_side_in(tmp_path) as far:
        async with running(far.channel(), far.inbox):
            await until_up(far)
            far.inbox.hold()
            keys = [await whisper(far, f"psst {number}") for number in range(ROOM_FOR + 5)]
            alice = far.people["alice"]
            await alice.until(lambda: len(returned(far)) >= 5)
            far.inbox.release()
            heard = [one.text for one in await accepted(far, ROOM_FOR)]
            assert returned(far) == keys[ROOM_FOR:]
            await whisper(far, "and now")  # the control: there is room again
            await accepted(far, ROOM_FOR + 1)
        assert heard == [f"psst {number}" for number in range(ROOM_FOR)]
        assert (far.inbox.texts[-1], len(returned(far))) == ("and now", 5)


async def test_what_could_not_be_stored_waits_for_the_next_connection(tmp_path):
    """The store refuses, the connection ends with it, and the message is there still, once."""
    async with far_side_in(tmp_path) as far:
        channel = far.channel()
        async with running(channel, far.inbox) as run:
            await until_up(far)
            far.inbox.refuse(ChannelUnavailable("no room"))
            await whisper(far, "psst")
            assert isinstance(await run.until_ended(within_s=far.patience_s), ChannelUnavailable)
        assert far.inbox.texts == []
        async with running(channel, far.inbox):
            await accepted(far, 1)
        assert far.inbox.texts == ["psst"]


async def test_of_two_daemons_with_one_account_the_later_one_answers(tmp_path):
    """The first is told why it stops, and does not log in again: no message is answered by both in turns."""
    async with far_side_in(tmp_path) as far:
        async with running(far.channel(), far.inbox) as first:
            await until_up(far)
            later = MemoryInbox()
            async with running(far.channel(), later):
                error = await first.until_ended(within_s=far.patience_s)
                assert isinstance(error, ChannelMisconfigured)
                assert "another program has logged in" in str(error)
                assert far.inbox.state is LinkState.FAILED
                await far.say("who answers?")
                await later.until_accepted(1, within_s=far.patience_s)
        assert (far.inbox.texts, later.texts) == ([], ["who answers?"])
