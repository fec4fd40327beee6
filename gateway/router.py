"""
Where a channel's batches enter: who may speak, what is remembered, which session is woken.

`ChannelInbox` is the `Inbox` that one channel is given. It never gives up on a batch: while the store cannot
take it, the channel waits here, and so nothing is acknowledged to its server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import structlog

from agent_core.messages import InboundMessage
from channels.base import LinkState
from gateway import metrics
from gateway.access import Access
from gateway.backoff import BackoffPolicy
from gateway.work.port import Dispatcher, Pending, StoreUnavailable, WorkStore
from gateway.work.states import InboxState

__all__ = ["ChannelInbox", "Intake", "ignore_reason"]

_STORE_RETRY = BackoffPolicy(first_s=1.0, cap_s=30.0)
_log = structlog.get_logger(__name__)
Report = Callable[[LinkState, str, Mapping[str, Any]], None]


def ignore_reason(message: InboundMessage, access: Access) -> str | None:
    """
    Why a message is only remembered as seen; None if it shall be answered.

    A channel may have refused it already (``context["refused"]``: a robot, a forged sender). Who is not
    allowed is not answered, whatever is said.
    """
    refused = message.context.get("refused")
    if refused:
        return str(refused)
    decision = access.decide(message)
    if not decision.allowed:
        return decision.reason
    if not message.addressed:
        return "not_addressed"
    return None


class Intake:
    """
    Whether anything is taken at all; one for all channels.

    Once closed, `ChannelInbox.accept` never returns: nothing is acknowledged any more, while the links stay
    up for what is still to be sent. What the servers have meanwhile is taken at the next start.
    """

    def __init__(self) -> None:
        self._open = True

    def close(self) -> None:
        """Take nothing any more."""
        self._open = False

    async def passed(self) -> None:
        """Return at once while open, else never."""
        if not self._open:
            await anyio.sleep_forever()


class ChannelInbox:
    """
    The gateway's side of one channel.

    Args:
        channel, account: Whose inbox this is.
        store, dispatcher, access: What it works with.
        intake: Whether anything is taken at all.
        report: Takes the channel's reports of its link.
        max_text_chars: Longer texts are cut, with a note, before anything else sees them.
    """

    def __init__(
        self,
        channel: str,
        account: str,
        *,
        store: WorkStore,
        dispatcher: Dispatcher,
        access: Access,
        intake: Intake,
        report: Report,
        max_text_chars: int = 200_000,
    ) -> None:
        self._channel = channel
        self._account = account
        self._store = store
        self._dispatcher = dispatcher
        self._access = access
        self._intake = intake
        self._report = report
        self._max_text_chars = max_text_chars

    async def accept(
        self, messages: Sequence[InboundMessage], positions: Mapping[str, str] | None = None
    ) -> None:
        """Take a batch over; see `channels.base.Inbox.accept`."""
        batch = [Pending(self._capped(message), ignore_reason(message, self._access)) for message in messages]
        await self._intake.passed()
        attempt = 0
        while True:
            try:
                rows = await self._store.accept(self._channel, self._account, batch, positions or {})
                break
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
        for row in rows:
            if row.state is InboxState.IGNORED:
                metrics.INBOUND_IGNORED.labels(self._channel, row.error or "unknown").inc()
                _log.info("message.ignored", channel=self._channel, inbox=row.id, reason=row.error)
            else:
                metrics.INBOUND_ACCEPTED.labels(self._channel).inc()
                _log.info("message.accepted", channel=self._channel, inbox=row.id)
                self._dispatcher.wake(row.message.session)

    def _capped(self, message: InboundMessage) -> InboundMessage:
        if len(message.text) <= self._max_text_chars:
            return message
        note = f"\n\n[The rest of this message was left out: it had {len(message.text)} characters.]"
        return message.model_copy(update={"text": message.text[: self._max_text_chars] + note})

    async def position(self, name: str) -> str | None:
        """The committed position of this channel."""
        attempt = 0
        while True:
            try:
                return await self._store.position(self._channel, self._account, name)
            except StoreUnavailable:
                attempt += 1
                await anyio.sleep(_STORE_RETRY.delay(attempt, random=random.random()))

    def report(self, state: LinkState, detail: str = "", **facts: Any) -> None:
        """Tell how the link is doing."""
        self._report(state, detail, facts)

    async def delivered_id(self, provider_id: str) -> str | None:
        """The outbox id that was delivered as ``provider_id``."""
        return await self._store.delivered(self._channel, self._account, provider_id)
