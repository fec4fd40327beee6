"""`squidbot send`: puts a message that answers nothing into the outbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agent_core.messages import MessageContext, MessageNotes, OutboundKind, SessionKey
from channels.base import Channel, ChannelError, SupportsDirectMessages
from channels.split import split_markdown
from gateway.errors import NeedsDaemon
from gateway.operations.arguments import RequestInvalid
from gateway.plugins import channel_kinds
from gateway.queue.model import is_too_long
from gateway.queue.stores import NewOutbound, Queue
from gateway.routing.access import Access, contact_rank
from gateway.routing.conversations import scope_at
from gateway.settings import Settings

_MAX_TEXT_BYTES = 16_000


def accounts_of(settings: Settings) -> dict[str, str]:
    """The bot's own address on each enabled channel."""
    kinds = settings.channels.kinds()
    return {
        name: channel_kinds()[kinds[name]].own_address(config)
        for name, config in settings.channels.enabled().items()
    }


def access_of(settings: Settings, more: Mapping[str, Sequence[str]] | None = None) -> Access:
    """The access rules of these settings, and of ``more`` people."""
    return Access(
        settings.owner.aliases,
        {**settings.allow_from(), **(more or {})},
        kinds=settings.channels.kinds(),
        apart=settings.channels.apart(),
        own=accounts_of(settings).values(),
    )


class SendOperations:
    """The operation that sends."""

    _store: Queue
    _report: Callable[[], Awaitable[Mapping[str, Any]]] | None
    _accounts: Mapping[str, str]
    _access: Access
    _channels: Mapping[str, Channel]

    async def send(self, to: str, text: str) -> dict[str, Any]:
        """
        Send a text to a channel and place, such as ``matrix:@alice:hs.test``, or to ``owner``.

        A person on Matrix is reached in the room of two, created on demand; a room by its id or alias. Mail
        needs the daemon, which knows the thread.
        """
        name, colon, place = (self._owner_place() if to.strip() == "owner" else to.strip()).partition(":")
        if not colon or not place or any(char.isspace() for char in place):
            raise RequestInvalid(
                f"{to!r} is not a destination; write owner, matrix:@person:server, matrix:#room:server, "
                "matrix:!room or email:person@domain"
            )
        account = self._accounts.get(name)
        if account is None:
            known = ", ".join(sorted(self._accounts)) or "none"
            raise RequestInvalid(f"there is no channel {name!r} that can send; enabled: {known}")
        parts = split_markdown(text, _MAX_TEXT_BYTES)
        if not parts:
            raise RequestInvalid("the text is empty; write what to send")
        session = await self._place(name, place, topic=text.strip().splitlines()[0][:80])
        noted = MessageContext(notes=MessageNotes(scope=scope_at(self._access, session, place)))
        rows = await self._store.outbox.post(
            [
                NewOutbound(name, account, session, each, OutboundKind.MESSAGE, noted, remembered=True)
                for each in parts
            ]
        )
        return {"to": to, "outbox": [row.id for row in rows], "running": self._report is not None}

    def _owner_place(self) -> str:
        names = sorted(self._accounts, key=lambda name: contact_rank(self._access.kind(name)))
        places = [f"{name}:{each}" for name in names for each in self._access.owner_on(name)]
        if not places:
            raise RequestInvalid("owner.aliases names no address on an enabled channel")
        return places[0]

    async def _place(self, name: str, place: str, *, topic: str) -> SessionKey:
        rules = channel_kinds()[self._access.kind(name)].addresses
        if rules.is_conversation(place):
            # Found, or made, when it is sent: that works without the daemon too.
            if is_too_long(session := SessionKey(name, place)):
                raise RequestInvalid(f"{place[:40]}… is too long for a person or a room")
            return session
        if rules.parse(place) is None:
            raise RequestInvalid(f"{place!r} is not an address on {name}; write it like {rules.example}")
        channel = self._channels.get(name)
        if channel is None and self._report is None:
            raise NeedsDaemon(f"{name} sends only while the daemon runs; start it with `squidbot run`")
        if not isinstance(channel, SupportsDirectMessages):
            raise RequestInvalid(
                f"{name} is not connected, or cannot start a conversation; squidbot status shows its state"
            )
        try:
            return await channel.direct_session(place, topic=topic)
        except ChannelError as error:
            raise RequestInvalid(f"a message to {place} is not possible: {error}") from error
