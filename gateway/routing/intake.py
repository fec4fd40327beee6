"""
Entry point of a channel's batches: decides who is answered, and what is only recorded as seen. `ChannelInbox`
is the `Inbox` that one channel is given. It never drops a batch: while the store cannot accept it, the
channel waits here, so nothing is acknowledged to its server.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.messages import Amendment, Audience, InboundMessage, MessageNotes, OutboundMessage, SessionKey
from channels.base import Channel, LinkState
from gateway.observability import metrics
from gateway.routing import admissions
from gateway.routing.access import Access, Role
from gateway.routing.conversations import Conversations
from gateway.store.model import is_too_long
from gateway.store.sql.amendments import AS_EDITED
from gateway.store.sql.quarantine_after_restore import RESTORED
from gateway.store.states import UNINVITED, InboxState
from gateway.store.stores import AcceptedBatch, Pending, Queue, StoppedTurn, StoreUnavailable

_STORE_RETRY = BackoffPolicy(first_s=1.0, cap_s=10.0)
MAX_TEXT = 200_000
"""The characters of a message; a longer one is cut, with a note."""
_NOT_ADDRESSED = "not_addressed"
_log = structlog.get_logger(__name__)
Report = Callable[[LinkState, str, Mapping[str, Any]], None]
DecideAnswers = Callable[[Sequence[Pending]], Awaitable[list[Pending]]]
"""Says what messages mean for questions that wait; what is no message for the model comes back as it is."""


async def _nothing_waits(batch: Sequence[Pending]) -> list[Pending]:
    return list(batch)


def ignore_reason(message: InboundMessage, access: Access) -> str | None:
    """
    Return why a message is only recorded as seen; None if it is to be answered.

    The channel may already have refused it (``context.refused``: a robot, a forged sender). A sender who
    is not allowed gets no answer.
    """
    if message.context.refused:
        return message.context.refused
    if is_too_long(message.session):
        return "name_too_long"
    decision = access.decide(message)
    if not decision.allowed:
        return decision.reason
    if not message.addressed:
        return _NOT_ADDRESSED
    return None


def admission(message: InboundMessage, access: Access) -> tuple[str | None, str | None]:
    """
    Return why a message is ignored, or quarantined; (None, None) if it is to be answered.

    A channel may ask for quarantine (``context.quarantine``) for a sender who is not verified; this
    applies if the address would be allowed. A message of a verified stranger is kept as `UNINVITED`; nothing
    is kept of others.
    """
    if message.context.invitation:
        return None, UNINVITED
    reason = message.context.quarantine
    if not reason or message.context.refused or is_too_long(message.session):
        ignored = ignore_reason(message, access)
        is_private = message.audience is Audience.DIRECT or not access.has_rooms(message.channel)
        asks = ignored == UNINVITED and message.kind == "message" and message.addressed and is_private
        return (None, UNINVITED) if asks else (ignored, None)
    role = access.role(message.channel, message.sender.address, verified=True)
    if role is not Role.STRANGER:
        return None, reason
    return (None, UNINVITED) if message.sender.verified else (UNINVITED, None)


class AcceptGate:
    """
    The gate for accepting messages; one for all channels.

    Once closed, `ChannelInbox.accept` never returns: nothing more is acknowledged, and the next start accepts
    it. ``perhaps_answered``: a message of this time may have been answered before a restore; it then waits
    for a person.
    """

    def __init__(self, perhaps_answered: Callable[[datetime], bool] = lambda _: False) -> None:
        self._open = True
        self.perhaps_answered = perhaps_answered

    def close(self) -> None:
        """Accept nothing more."""
        self._open = False

    async def admission(self) -> None:
        """Return at once while open, afterwards never."""
        if not self._open:
            await anyio.sleep_forever()


class RecognisesCommands(Protocol):
    """Recognises commands of conversations."""

    def is_command(self, message: InboundMessage) -> bool:
        """Return True for a message that is answered by code, so that it gets a turn of its own."""

    def is_stop(self, message: InboundMessage) -> bool:
        """Return True for the stop command."""


class ChannelInbox:
    """
    The gateway's side of one channel.

    Args:
        intake: The gate.
        report: Receives the state of the link.
        commands: Recognises messages that are answered by code; None: there are none.
        hear: Recognises answers to questions, and withdrawn questions.
        cut_off: Cancels turns with edited messages; the queue reports only lost ones.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        store: Queue,
        conversations: Conversations,
        intake: AcceptGate,
        report: Report,
        commands: RecognisesCommands | None = None,
        hear: DecideAnswers = _nothing_waits,
        cut_off: Callable[[StoppedTurn], None] = lambda _: None,
    ) -> None:
        self._channel = channel.name
        self._account = channel.account
        self._store = store
        self._conversations = conversations
        self._access = conversations.access
        self._intake = intake
        self._report = report
        self._commands = commands
        self._hear = hear
        self._cut_off = cut_off

    async def accept(
        self,
        messages: Sequence[InboundMessage],
        positions: Mapping[str, str] | None = None,
        amendments: Sequence[Amendment] = (),
    ) -> None:
        """Accept a batch; see `channels.base.Inbox.accept`."""
        batch = [self._pending(message) for message in messages]
        changes = [each.model_copy(update={"text": self._cut(each.text)}) for each in amendments]
        await self._intake.admission()
        rows = await self._stored(batch, positions or {}, changes)
        for row in rows:
            if row.state is InboxState.IGNORED:
                metrics.INBOUND_IGNORED.labels(self._channel, row.error or "unknown").inc()
                _log.info("message.ignored", channel=self._channel, inbox=row.id, reason=row.error)
            elif row.state is InboxState.QUARANTINED:
                metrics.INBOUND_IGNORED.labels(self._channel, "quarantined").inc()
                _log.warning("message.quarantined", channel=self._channel, inbox=row.id, reason=row.error)
            else:
                metrics.INBOUND_ACCEPTED.labels(self._channel).inc()
                where = str(row.message.session)
                _log.info("message.accepted", channel=self._channel, inbox=row.id, session=where)
        for stopped in rows.stopped:
            _log.info("turn.stopped", channel=self._channel, turn=stopped.turn, why=stopped.why)
            if stopped.why == AS_EDITED:
                self._cut_off(stopped)

    async def _stored(
        self, batch: Sequence[Pending], positions: Mapping[str, str], changes: Sequence[Amendment]
    ) -> AcceptedBatch:
        attempt = 0
        while True:
            try:
                heard = await admissions.bound_batch(await self._hear(batch), self._store)
                stopping = [*changes, *self._stops(heard)]
                return await self._store.inbox.accept(
                    self._channel, self._account, heard, positions, stopping
                )
            except StoreUnavailable as error:
                attempt += 1
                delay_s = _STORE_RETRY.delay(attempt, random=random.random())
                _log.error(
                    "inbox.blocked",
                    channel=self._channel,
                    error=str(error),
                    retry_in_s=delay_s,
                    **error.fields,
                )
                await anyio.sleep(delay_s)

    def _pending(self, message: InboundMessage) -> Pending:
        # Only the owner's word makes a sender admitted, see `InboxStore.admit`.
        message = message.model_copy(update={"text": self._cut(message.text)}).with_notes(MessageNotes())
        ignore, quarantine = admission(message, self._access)
        if is_too_long(message.session):
            digest = hashlib.sha256(str(message.session).encode()).hexdigest()[:40]
            message = message.model_copy(update={"session": SessionKey(self._channel, f"too-long-{digest}")})
        if (
            ignore is None
            and quarantine is None
            and message.kind != "tick"
            and self._intake.perhaps_answered(message.received_at)
        ):
            quarantine = RESTORED
        if quarantine == UNINVITED:
            message = admissions.cut_message(message)
        open_now = ignore is None and quarantine is None
        return Pending(
            message,
            ignore,
            quarantine,
            alone=ignore is None and self._commands is not None and self._commands.is_command(message),
            session=self._conversations.conversation_for(message) if open_now else None,
        )

    def _is_owners(self, message: InboundMessage) -> bool:
        return self._access.decide(message).role is Role.OWNER

    def _stops(self, batch: Sequence[Pending]) -> list[Amendment]:
        if self._commands is None:
            return []
        return [
            Amendment(
                kind="stop",
                native_id=entry.message.native_id,
                session=entry.conversation,
                sender="" if self._is_owners(entry.message) else entry.message.sender.address,
            )
            for entry in batch
            if entry.ignore is None and entry.quarantine is None and self._commands.is_stop(entry.message)
        ]

    def _cut(self, text: str) -> str:
        if len(text) <= MAX_TEXT:
            return text
        note = f"\n\n[The rest of this message was left out: it had {len(text)} characters.]"
        return text[:MAX_TEXT] + note

    async def position(self, name: str) -> str | None:
        """The committed position of this channel."""
        attempt = 0
        while True:
            try:
                return await self._store.inbox.position(self._channel, self._account, name)
            except StoreUnavailable:
                attempt += 1
                await anyio.sleep(_STORE_RETRY.delay(attempt, random=random.random()))

    def report(self, state: LinkState, detail: str = "", **facts: Any) -> None:
        """Report the state of the link."""
        self._report(state, detail, facts)

    async def delivered_id(self, provider_id: str) -> str | None:
        """The outbox id that was delivered as ``provider_id``."""
        return await self._store.outbox.outbox_id_of(self._channel, self._account, provider_id)

    async def ignored_session(self, native_id: str, sender: str) -> SessionKey | None:
        """The conversation of a message of this sender that was not meant for the bot."""
        row = await self._store.inbox.find_by_key(self._channel, self._account, native_id)
        theirs = row is not None and row.message.sender.address == sender
        return row.message.session if row is not None and theirs and row.error == _NOT_ADDRESSED else None

    async def find_sent_message(self, outbound_id: str) -> OutboundMessage | None:
        """The message of this outbox id."""
        row = await self._store.outbox.find_by_key(outbound_id)
        return None if row is None else row.message

    async def unconfirmed_sends(self) -> Sequence[str]:
        """The outbox ids of sends that the server may have received under an unknown id."""
        return await self._store.outbox.unconfirmed_keys(self._channel, self._account)
