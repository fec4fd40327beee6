"""Opening a mailbox: refusals, rubbish and silence are told apart, and nothing becomes a command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from channels.base import ChannelAuthFailed, ChannelError, ChannelMisconfigured, ChannelUnavailable
from channels.email.imap.mailbox import Mailbox
from tests.doubles.imap_server import Dialogue, fake_imap
from tests.doubles.mailbox import Store, config

pytestmark = pytest.mark.virtual_time


async def mailbox_error(store: Callable[[Dialogue], Awaitable[None]], **changes: Any) -> ChannelError:
    """What opening the mailbox raises."""
    async with fake_imap(store) as port:
        with pytest.raises(ChannelError) as caught:
            async with Mailbox.open(config(port, **changes), None):
                pass
    return caught.value


class TestLogin:
    @pytest.mark.parametrize(
        ("reply", "error"),
        [
            ("NO [AUTHENTICATIONFAILED] wrong", ChannelAuthFailed),
            ("NO [AUTHORIZATIONFAILED] not yours", ChannelAuthFailed),
            ("NO [EXPIRED] the password", ChannelAuthFailed),
            ("NO [ALERT] Too many simultaneous connections", ChannelUnavailable),
            ("NO LOGIN failed", ChannelUnavailable),
            ("NO [UNAVAILABLE] try later", ChannelUnavailable),
            ("NO [INUSE] only one at a time", ChannelUnavailable),
            ("NO [PRIVACYREQUIRED] not in the clear", ChannelMisconfigured),
            ("BAD what", ChannelMisconfigured),
        ],
    )
    async def test_refusals_are_told_apart(self, reply: str, error: type[ChannelError]) -> None:
        """A wrong password is for the operator, a busy server for later; the words of the server are kept."""
        store = Store()

        async def refuse(server: Dialogue, tag: str, text: str) -> bool:
            await server.say(f"{tag} {reply}")
            return True

        store.bend["LOGIN"] = refuse
        found = await mailbox_error(store)

        assert type(found) is error
        assert reply.split("] ")[-1].split()[-1] in str(found)
        assert "pw-secret" not in str(found)

    async def test_control_characters_cannot_become_commands(self) -> None:
        """A line break in the password is an error, not a second command."""
        store = Store()
        found = await mailbox_error(store, password="x\r\nA9 DELETE INBOX")

        assert type(found) is ChannelMisconfigured
        assert not any("DELETE" in command for command in store.commands)

    async def test_a_server_that_is_full_says_so(self) -> None:
        """The words of a BYE reach the operator."""

        async def full(server: Dialogue) -> None:
            await server.say("* BYE too many connections from you")

        found = await mailbox_error(full)
        assert type(found) is ChannelUnavailable
        assert "too many connections" in str(found)

    async def test_silence_and_absence(self) -> None:
        """A server that says nothing, one that says rubbish, and none at all are unavailable."""

        async def silent(server: Dialogue) -> None:
            await server.until_gone()

        async def rubbish(server: Dialogue) -> None:
            await server.greet()
            await server.command("LOGIN")
            await server.say("HTTP/1.1 400 Bad Request")
            await server.until_gone()

        assert type(await mailbox_error(silent)) is ChannelUnavailable
        assert type(await mailbox_error(rubbish)) is ChannelUnavailable
        with pytest.raises(ChannelUnavailable):
            async with Mailbox.open(config(1), None):
                pass
