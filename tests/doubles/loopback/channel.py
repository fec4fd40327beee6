"""The loopback channel: the contract of `channels.base`, kept towards a `LoopbackServer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio

from agent_core.messages import Background, InboundMessage, OutboundMessage, Sender, SessionKey
from channels.base import (
    Capabilities,
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryUncertain,
    Inbox,
    LinkState,
    Receipt,
)
from tests.doubles.loopback.server import Delivered, Link, LoopbackServer, Said

_LONG_POLL_S = 30.0


def _pass(point: str) -> None:
    """Nobody is interested in the moments that the channel passes."""


def _quoted(said: Said, account: str) -> tuple[Background, ...]:
    return (Background(kind="quoted", sender=account, text=said.quotes),) if said.quotes else ()


class LoopbackChannel:
    """
    A channel to a `LoopbackServer`.

    Args:
        account: The bot's own name there; what comes from it is an echo and is not handed over.
        timeout_s: How long the server may take for a delivery.
        batch: How many messages are fetched at once.
        point: Called at each named moment, for tests that strike there: ``fetched`` (not yet accepted),
            ``accepted`` (not yet acknowledged), ``acknowledged``; ``sending`` (nothing said yet),
            ``uncertain`` (recorded, not yet sent), ``taken`` (the server has it, nobody knows).

    The position ``next`` is the sequence number of the last accepted message.
    """

    def __init__(
        self,
        server: LoopbackServer,
        *,
        name: str = "loopback",
        account: str = "bot",
        timeout_s: float = 30.0,
        batch: int = 100,
        email_style: bool = False,
        point: Callable[[str], None] = _pass,
    ) -> None:
        self.name = name
        self.account = account
        self.capabilities = Capabilities(
            redelivery=server.redelivery,
            previews=not email_style,
            typing=not email_style,
            email_style=email_style,
            attachments=True,
        )
        self._server = server
        self._timeout_s = timeout_s
        self._batch = batch
        self._point = point
        self._link: Link | None = None
        self.away = False
        """Whether nobody can be found for a proactive message."""

    async def run(self, inbox: Inbox) -> None:
        """Receive until cancelled; see `Channel.run`."""
        inbox.report(LinkState.CONNECTING)
        try:
            self._link = await self._server.login(self.account)
            inbox.report(LinkState.CATCHING_UP)
            await self._receive(inbox, self._link)
        except ChannelAuthFailed as error:
            inbox.report(LinkState.FAILED, str(error))
            raise
        except ChannelError as error:
            inbox.report(LinkState.DOWN, str(error))
            raise
        finally:
            self._link = None

    async def _receive(self, inbox: Inbox, link: Link) -> None:
        position = await inbox.position("next") or "0"
        if not position.isdecimal():
            raise ChannelMisconfigured("the stored position is not a number", position=position)
        after, waiting = int(position), True
        while True:
            batch = await self._server.fetch(
                link, after, limit=self._batch, wait_s=0.0 if waiting else _LONG_POLL_S
            )
            if batch:
                self._point("fetched")
                after = max(after, batch[-1].sequence)
                messages = [self._inbound(said) for said in batch if said.person != self.account]
                await inbox.accept(messages, {"next": str(after)})
                self._point("accepted")
                await self._server.acknowledge(link, after)
                self._point("acknowledged")
            elif waiting:
                waiting = False
                inbox.report(LinkState.UP)

    def _inbound(self, said: Said) -> InboundMessage:
        return InboundMessage(
            channel=self.name,
            account=self.account,
            native_id=said.native_id,
            session=SessionKey(self.name, said.conversation),
            sender=Sender(address=said.person, name=said.name, verified=said.verified),
            text=said.text,
            received_at=said.said_at,
            audience=said.audience,
            addressed=said.addressed,
            context={"route": {"event_id": said.native_id}},
            background=_quoted(said, self.account),
        )

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Send one message; see `Channel.deliver`."""
        link = self._connected()
        self._point("sending")
        await uncertain()
        self._point("uncertain")
        outgoing = Delivered(
            key=message.id,
            conversation=message.session.conversation,
            text=message.text,
            kind=message.kind,
            context=message.context,
            rings_for=message.rings_for,
            attachments=message.attachments,
        )
        provider_id = None
        with anyio.move_on_after(self._timeout_s):
            provider_id = await self._server.take(link, outgoing)
        if provider_id is None:
            raise DeliveryUncertain(f"no answer within {self._timeout_s:g} s")
        self._point("taken")
        return Receipt(provider_id)

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Ask the server for a message by its key; see `Channel.probe`."""
        provider_id = await self._server.find(self._connected(), message.id)
        return Receipt(provider_id) if provider_id is not None else None

    async def direct_session(self, person: str, *, topic: str = "") -> SessionKey:
        """The conversation with a person alone; by email one for each topic."""
        if self.away:
            raise ChannelUnavailable("the loopback server is not asked, as wanted")
        return SessionKey(
            self.name, self._alone_in(person), (topic or None) if self.capabilities.email_style else None
        )

    async def alone_with(self, session: SessionKey, person: str) -> bool:
        """Whether the server says so."""
        return session.conversation == self._alone_in(person)

    async def is_in(self, session: SessionKey) -> bool:
        """Whether the bot was not removed."""
        return session.conversation not in self._server.left

    def room_name(self, conversation: str) -> str:
        """The name of a room."""
        return self._server.rooms.get(conversation, ("", "", {}))[0]

    def name_giver(self, conversation: str) -> str:
        """Who has set it."""
        return self._server.rooms.get(conversation, ("", "", {}))[1]

    def member_names(self, conversation: str) -> Mapping[str, str]:
        """The names of its members."""
        return self._server.rooms.get(conversation, ("", "", {}))[2]

    async def people(self, conversation: str) -> Mapping[str, str]:
        """Its members besides the bot."""
        return {each: name for each, name in self.member_names(conversation).items() if each != self.account}

    def _alone_in(self, person: str) -> str:
        """The place where nobody else is; a new one, if others have come into the old one."""
        place = f"dm-{person}"
        while place in self._server.groups:
            place += "-anew"
        return place

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Show or hide that work goes on."""
        if on:
            self._server.typing.add(session.conversation)
        else:
            self._server.typing.discard(session.conversation)

    async def preview(self, session: SessionKey, text: str) -> None:
        """Show the unfinished answer."""
        self._server.previews.append((session.conversation, text))

    async def aclose(self) -> None:
        """Forget the link."""
        self._link = None

    def _connected(self) -> Link:
        if self._link is None:
            raise ChannelUnavailable("not logged in to the loopback server")
        return self._link
