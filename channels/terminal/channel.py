"""
The gateway's side of the terminal channel. What is typed is confirmed to the person only after the inbox has
accepted it. While nobody is attached to a session, its answers are refused with "unavailable" and stay in the
outbox until somebody is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from agent_core.bounded import Bounded
from agent_core.messages import InboundMessage, MessageContext, OutboundMessage, Sender, SessionKey
from channels.base import (
    Capabilities,
    ChannelUnavailable,
    DeliveryUncertain,
    Inbox,
    LinkState,
    NoRecipient,
    Receipt,
    Redelivery,
)
from channels.terminal.terminal_link import (
    MAX_WAITING,
    REMEMBERED,
    Answer,
    Preview,
    TerminalDelivery,
    TerminalLink,
    Typing,
)

_MAX_LINKS = 32
_RETRY_AFTER_S = 15.0


@dataclass(frozen=True)
class _Route:
    """The note of this channel with a message: its id, for the answer."""

    native_id: str = ""


class _Typed:
    """Something typed on its way to the inbox."""

    def __init__(self, message: InboundMessage) -> None:
        self.message = message
        self.accepted = False
        self.over = anyio.Event()


LIMIT_S = 10.0
"""The most time for `TerminalLink.say` and for a delivery."""


class TerminalChannel:
    """
    The channel of the person at this machine; sessions are ``terminal/<session name>``.

    ``on_attach`` is called with an attached session.
    """

    # A screen scrolls: an answer is never cut into pieces.
    capabilities = Capabilities(
        redelivery=Redelivery.SAME_KEY, previews=True, typing=True, max_text_bytes=1_000_000
    )

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_attach: Callable[[SessionKey], None] | None = None,
    ) -> None:
        self.name = "terminal"
        self.account = "local"
        self._now = now
        self.on_attach = on_attach
        self._links: list[TerminalLink] = []
        self._typed: MemoryObjectSendStream[_Typed] | None = None
        self._delivered: Bounded[str, None] = Bounded(REMEMBERED)

    def attach(self, session: str = "main") -> TerminalLink:
        """Open a link to a session; all links get every answer. Raises ChannelUnavailable if too many."""
        if len(self._links) >= _MAX_LINKS:
            raise ChannelUnavailable(f"more than {_MAX_LINKS} terminals are attached", links=len(self._links))
        link = TerminalLink(self, SessionKey(self.name, session))
        self._links.append(link)
        if self.on_attach is not None:
            self.on_attach(link.session)
        return link

    async def run(self, inbox: Inbox) -> None:
        """Pass typed messages on until cancelled; see `Channel.run`."""
        send, receive = anyio.create_memory_object_stream[_Typed](MAX_WAITING)
        batch: list[_Typed] = []
        with send, receive:
            try:
                self._typed = send
                inbox.report(LinkState.UP)
                while True:
                    batch = [await receive.receive()]
                    batch += _waiting(receive)
                    await inbox.accept([typed.message for typed in batch])
                    for typed in batch:
                        typed.accepted = True
                        typed.over.set()
            finally:
                self._typed = None
                for typed in [*batch, *_waiting(receive)]:
                    typed.over.set()

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Deliver an answer to the links of its session; see `Channel.deliver`."""
        receipt = Receipt(provider_id=message.id)
        if message.id in self._delivered:
            return receipt
        self._attached(message.session)
        await uncertain()
        answers = message.context.read_route(_Route).native_id
        handover = TerminalDelivery(
            Answer(id=message.id, text=message.text, kind=message.kind, answers=answers)
        )
        links = self._attached(message.session)
        for link in links:
            link.queue_answer(handover)
        try:
            with anyio.move_on_after(LIMIT_S):
                await handover.over.wait()
        finally:
            if not handover.taken:
                for link in links:
                    link.withdraw(handover)
        if handover.taken:
            return receipt
        if handover.received:
            raise DeliveryUncertain("a terminal received it but has not confirmed it")
        raise ChannelUnavailable("no terminal accepted it", retry_after_s=_RETRY_AFTER_S)

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Never asked, because of `Redelivery.SAME_KEY`; answered from memory."""
        return Receipt(provider_id=message.id) if message.id in self._delivered else None

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Show or hide that the bot is working."""
        self._hint(session, Typing(on=on))

    async def preview(self, session: SessionKey, text: str) -> None:
        """Show the unfinished answer."""
        self._hint(session, Preview(text=text))

    async def aclose(self) -> None:
        """Close all links."""
        for link in list(self._links):
            link.close()

    # ── for the links ──
    async def accept_line(self, session: SessionKey, text: str, native_id: str) -> None:
        """Pass a typed message to `run` and wait for its acceptance. Raises ChannelUnavailable."""
        message = InboundMessage(
            channel=self.name,
            account=self.account,
            native_id=native_id,
            session=session,
            sender=Sender(address=self.account, verified=True),
            # A keyboard can type half a surrogate pair, which no file and no server takes.
            text=text.encode("utf-8", "replace").decode(),
            received_at=self._now(),
            context=MessageContext().with_route(_Route(native_id=native_id)),
        )
        if self._typed is None:
            raise ChannelUnavailable("the gateway accepts nothing at the moment")
        typed = _Typed(message)
        with anyio.move_on_after(LIMIT_S):
            try:
                await self._typed.send(typed)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                typed.over.set()
            await typed.over.wait()
        if not typed.accepted:
            raise ChannelUnavailable("it is not stored yet; perhaps the disk is full")

    def note_confirmation(self, answer_id: str) -> None:
        """Note that an answer need not be shown again."""
        self._delivered[answer_id] = None

    def detach(self, link: TerminalLink) -> None:
        """Remove a closed link."""
        if link in self._links:
            self._links.remove(link)

    # ── inside ──
    def _attached(self, session: SessionKey) -> list[TerminalLink]:
        links = [link for link in self._links if link.session == session]
        if not links:
            raise NoRecipient("nobody is at the terminal", retry_after_s=_RETRY_AFTER_S)
        return links

    def _hint(self, session: SessionKey, event: Preview | Typing) -> None:
        for link in self._links:
            if link.session == session:
                link.queue_hint(event)


def _waiting(receive: MemoryObjectReceiveStream[_Typed]) -> list[_Typed]:
    found: list[_Typed] = []
    while True:
        try:
            found.append(receive.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            return found
