"""
The one path by which the gateway itself writes to the owner: where a message goes, how it is split, and that
each is posted once. They name people and what those wrote, so they go only where the owner reads alone
(`OwnerContact.reach`). An alert does not wait for that place: if there is none yet, or its channel is down,
it goes by any other channel that reaches the owner, in a conversation that is made for it. Nothing is retried
or kept here. Where there is no place now, the caller is told why and asks again later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import structlog

from agent_core.memory.scopes import OWNER
from agent_core.messages import Attachment, MessageContext, OutboundKind, SessionKey
from agent_core.models import Message
from agent_core.ports import Clock
from agent_core.provenance import Origins, arriving, untrusted_origin
from channels.base import LinkState
from channels.split import message_parts
from channels.status import ChannelStatus
from gateway.proactive.jobs.job_permissions import OwnerUnreachable
from gateway.proactive.owner_contact import ContactResult, OwnerContact, Target
from gateway.routing.conversations import Conversations
from gateway.store.stores import NewOutbound, Queue

Once = tuple[str, str]
"""A subject and its value: nothing is posted under them again until the subject has another value."""
_log = structlog.get_logger(__name__)


class OwnerNotifier:
    """Notifies the owner, for all callers; ``conversations`` find the history of a remembered text."""

    def __init__(
        self, store: Queue, contact: OwnerContact, clock: Clock, conversations: Conversations | None = None
    ) -> None:
        self._store = store
        self._conversations = conversations
        self.contact = contact
        self._clock = clock
        self._down: set[str] = set()
        self._missed: set[str] = set()

    def note_channel(self, status: ChannelStatus) -> None:
        """Note that a channel cannot send now, or can again."""
        if status.state is LinkState.UP:
            self._down.discard(status.name)
        elif status.state in (LinkState.DOWN, LinkState.FAILED):
            self._down.add(status.name)

    async def reach(self, topic: str, kind: OutboundKind = OutboundKind.NOTICE) -> ContactResult:
        """Return where a message about ``topic`` goes; logs a missing place once. Raises StoreUnavailable."""
        reached = await self.contact.reach(topic=topic)
        waits = reached.later and not self._down
        lost = reached.target is None or reached.target.channel in self._down
        if kind is OutboundKind.ALERT and lost and not waits:
            other = await self.contact.find_other_place(topic=topic, without=self._down)
            reached = other if other.target is not None else reached
        if reached.target is not None and reached.target.channel not in self.contact.channels:
            reached = ContactResult(why=f"the owner's channel, {reached.target.channel}, is switched off")
        self._log(topic, reached)
        return reached

    async def unreachable_error(self, reached: ContactResult) -> OwnerUnreachable:
        """Return the error, with the channel whose link it waits for. Raises `StoreUnavailable`."""
        return OwnerUnreachable(reached.why, await self.contact.channel())

    def read_in(self, target: Target) -> SessionKey:
        """The session in whose history something stands that the owner is told."""
        place = target.session
        return place if self._conversations is None else self._conversations.reading_scope(place)

    def is_email_style(self, target: Target) -> bool:
        """Return True if each message there is an email of its own: nobody wants ten of them at once."""
        return self.contact.channels[target.channel].capabilities.email_style

    async def notify(
        self,
        topic: str,
        text: str,
        *,
        once: Once | Callable[[Target], Once] | None = None,
        kind: OutboundKind = OutboundKind.NOTICE,
        remember: bool = False,
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> ContactResult:
        """
        Post a message to the owner and return where; without a target nothing was done.

        Args:
            topic: Selects the conversation on channels that have one per topic.
            once: The key of posting; it may depend on the target.
            kind: An alert takes another way if the usual place is unreachable.
            remember: Add the text to the conversation's history, so that it can be asked about.
            texts: See `OutboxStore.post`.

        Raises:
            StoreUnavailable: Nothing was posted.
        """
        reached = await self.reach(topic, kind)
        if reached.target is not None:
            under = once(reached.target) if callable(once) else once
            await self.post(reached.target, text, once=under, kind=kind, remember=remember, texts=texts)
        return reached

    async def compose(
        self, topic: str, text: str, context: MessageContext | None = None
    ) -> list[NewOutbound] | None:
        """Build a notice to commit with other work; None without a place. Raises `StoreUnavailable`."""
        target = (await self.reach(topic)).target
        if target is None:
            return None
        return self.parts(target, text, OutboundKind.NOTICE, context=context, rings=True)

    async def post(
        self,
        target: Target,
        text: str,
        *,
        once: Once | None = None,
        kind: OutboundKind = OutboundKind.NOTICE,
        remember: bool = False,
        collected: Sequence[int] = (),
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Post to a known place, like `notify`, ending ``collected``; False if done before."""
        outbound = self.parts(target, text, kind)
        name = " ".join(once or (kind.value,))
        # A digest has what check-ins have said, which may have read what anybody has written.
        now = self._clock.now()
        origins = (untrusted_origin("hook", "check-ins", now),) if collected else ()
        line = alert_line(text, f"{name}.alert", now, origins)
        history = [(self.read_in(target), (line,))] if remember else []
        posted = await self._store.outbox.post(
            outbound, once=once, history=history, collected=collected, texts=texts
        )
        if posted:
            _log.info("owner.notified", channel=target.channel, kind=kind.value)
        return bool(posted)

    def parts(
        self,
        target: Target,
        text: str,
        kind: OutboundKind,
        *,
        context: MessageContext | None = None,
        attachments: Sequence[Attachment] = (),
        rings: bool = False,
    ) -> list[NewOutbound]:
        """Split a message into parts to commit with other work; ``rings`` if it waits for the owner."""
        rings_for = tuple(filter(None, [target.person])) if rings else None
        capabilities = self.contact.channels[target.channel].capabilities
        return [
            NewOutbound(
                target.channel,
                target.account,
                target.session,
                part,
                kind,
                context or MessageContext(),
                attachments=files,
                rings_for=rings_for,
            )
            for part, files in message_parts(text, attachments, capabilities)
        ]

    def _log(self, topic: str, reached: ContactResult) -> None:
        if reached.target is not None:
            self._missed.clear()
        elif reached.why not in self._missed and len(self._missed) < 100:
            self._missed.add(reached.why)
            _log.warning("owner.not_reached", topic=topic, reason=reached.why)


def alert_line(text: str, line_id: str, at: datetime, origins: Origins = ()) -> Message:
    """
    A proactive message to the owner, as a line of the history of the conversation where it is read.

    ``origins`` are whose words it is made of, besides the owner's and the program's; they come in with it.
    """
    turn = line_id.rpartition(".")[0]
    return Message(
        role="assistant",
        content=text,
        id=line_id,
        turn=turn,
        timestamp=at,
        scope=str(OWNER),
        origins=arriving(origins, at),
    )
