"""Removes from an answer to one of our mails what it repeats of that, see `intake.MailIntake.answering`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread

from agent_core.messages import InboundMessage, OutboundMessage, SessionKey
from channels.base import Inbox
from channels.email.mail_route import route_of
from channels.email.parse.mail_threads import names_outbound, recipient_of
from channels.email.receive.mail_intake import Arrival, MailIntake

PARSE_LIMIT_S = 20.0


class Repeats:
    """Finds what an answer repeats, by the store."""

    def __init__(self, inbox: Inbox, intake: MailIntake) -> None:
        self._inbox = inbox
        self._intake = intake

    async def remove_repeats(self, message: InboundMessage, arrival: Arrival) -> InboundMessage:
        """
        With what the store calls the mail that it answers, and without what it repeats of that. Unless we
        have written it to its sender, the subject is somebody else's, and nothing is known of what is quoted:
        anybody can make up an id like ours, or pass a mail of ours on.
        """
        route = route_of(message.context)
        if not route.answers:
            return message
        key, sent = await self._sent(route.answers)
        route = replace(route, answers="")
        context = replace(message.context, outbound=key or "")
        if sent is None or not self._is_to(sent.session, message):
            context = replace(context, others_words=True)
            return message.with_context(context.with_route(replace(route, others_subject=True)))
        message = message.with_context(context.with_route(route))
        read = partial(self._intake.answering, message, arrival, sent)
        with anyio.move_on_after(PARSE_LIMIT_S):
            return await anyio.to_thread.run_sync(partial(read, formatted=True), abandon_on_cancel=True)
        return await anyio.to_thread.run_sync(partial(read, formatted=False))

    async def has_written_to(self, message_id: str, senders: Collection[str]) -> bool:
        """Return True if our mail went to one of the senders; a copy's Message-ID may be a stranger's."""
        _, sent = await self._sent(message_id)
        if sent is None:
            return False
        whom = (sent.session.thread or recipient_of(sent.session) or "").partition("<")[0]
        return whom in senders or (self._intake.is_owners([whom]) and self._intake.is_owners(senders))

    async def _sent(self, message_id: str) -> tuple[str | None, OutboundMessage | None]:
        """The outbox id of a mail of ours, and what was sent, as far as the store has it."""
        key = await self._inbox.delivered_id(message_id) or await self._unconfirmed(message_id)
        return key, None if key is None else await self._inbox.find_sent_message(key)

    def _is_to(self, session: SessionKey, message: InboundMessage) -> bool:
        """Return True if a conversation is the sender's, who may be the owner elsewhere."""
        if session == message.session:
            return True
        whom = recipient_of(session) or ""
        return self._intake.is_owners([whom]) and self._intake.is_owners([message.sender.address])

    async def _unconfirmed(self, message_id: str) -> str | None:
        """The outbox id of a mail of ours that somebody answers before we know that it was taken."""
        account = self._intake.account
        known = (
            key
            for key in await self._inbox.unconfirmed_sends()
            if names_outbound(message_id, key, account=account)
        )
        return next(known, None)
