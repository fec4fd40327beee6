"""The outbox: what goes out, and how far that is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.queue.model import NewOutbound, OtherHistory, OutboxRow
from gateway.queue.states import OutboxState


class OutboxStore(Protocol):
    """The outbox: what goes out, and how far that is."""

    async def post(
        self,
        outbound: Sequence[NewOutbound],
        *,
        once: tuple[str, str] | None = None,
        history: Sequence[OtherHistory] = (),
        collected: Sequence[int] = (),
    ) -> list[OutboxRow]:
        """
        Put messages that answer nothing into the outbox; with them, in the same transaction, lines of
        histories, and the removal of what was collected for a digest.

        With ``once``, a topic and a value, all of this happens unless the topic has that value already, and
        the topic gets it in the same transaction. So a topic is posted once for each value that follows
        another one, over kills and restarts. What was posted before is not returned.
        """
        ...

    async def next_sends(
        self, channel: str, account: str, *, busy: Sequence[SessionKey] = (), limit: int = 16
    ) -> list[OutboxRow]:
        """
        What can be sent now: of each session that is not in ``busy`` its oldest row that is neither SENT
        nor DEAD nor UNKNOWN nor HELD, if that one is due. So a destination gets its messages in order.
        """
        ...

    async def next_send_in(
        self, channel: str, account: str, *, busy: Sequence[SessionKey] = ()
    ) -> float | None:
        """
        Seconds until the next row that waits becomes due (0.0: one is); None if none waits. Of each session
        that is not in ``busy`` only the oldest open row counts, and not while it is SENDING.
        """
        ...

    async def sending(self, row: OutboxRow) -> None:
        """``pending → sending``, ``attempts + 1``: before anything is said to the server."""
        ...

    async def probing(self, row: OutboxRow) -> None:
        """
        ``uncertain → sending``, and no attempt more: before the server is asked whether it has it. So it is
        known what was in flight if the process dies of that.
        """
        ...

    async def uncertain(self, row: OutboxRow) -> None:
        """``sending → uncertain``, durable before this returns: from now on the server may have it."""
        ...

    async def sent(self, row: OutboxRow, provider_id: str, *, into: SessionKey | None = None) -> None:
        """The server has it; rows with nothing left to send are SETTLED. ``into``: whose history it joins."""
        ...

    async def pass_on(
        self, row: OutboxRow, outbound: NewOutbound, *, usage: Usage, purpose: Purpose
    ) -> OutboxRow:
        """
        What the row stood for is made: the row is SENT and ``outbound`` is in the outbox, for the same turn,
        and what that has cost is noted, together. The new row has the same key whenever this is repeated.

        Raises:
            IllegalMove: The row is neither SENDING nor UNCERTAIN (any more).
        """
        ...

    async def send_failed(
        self,
        row: OutboxRow,
        error: str,
        *,
        delay_s: float | None,
        certain: bool = True,
        apology: str | None = None,
        waits_for: str | None = None,
    ) -> None:
        """
        Not sent. ``delay_s`` None: for good (DEAD). Otherwise again after that time, or `due_now`: as PENDING
        if it is ``certain`` that the server does not have it, else it stays UNCERTAIN.

        With ``apology`` this text is put into the outbox in its place, in the same commit, unless a part of
        the same answer has led to one already.
        """
        ...

    async def needs_review(self, row: OutboxRow, error: str) -> None:
        """Nobody can find out whether it was sent: UNKNOWN, a person decides."""
        ...

    async def approve(self, outbox_id: int, text: str | None = None) -> OutboxRow:
        """
        A person wants a draft sent, with ``text`` in the place of its own: HELD → PENDING. It counts as made
        at this moment, so that nobody finds it too old.

        Raises:
            IllegalMove: It is not held (any more).
        """
        ...

    async def reject(self, outbox_id: int, why: str = "") -> OutboxRow:
        """
        A person does not want a draft sent: HELD → DEAD, with the error ``rejected: <why>``.

        Raises:
            IllegalMove: It is not held (any more).
        """
        ...

    async def row(self, outbox_id: int) -> OutboxRow | None:
        """One row of the outbox."""
        ...

    async def by_key(self, key: str) -> OutboxRow | None:
        """The newest row of the outbox with this key (``OutboundMessage.id``)."""
        ...

    async def delivered(self, channel: str, account: str, provider_id: str) -> str | None:
        """The outbox key (``OutboundMessage.id``) that was sent as ``provider_id``."""
        ...

    async def unconfirmed(self, channel: str, account: str) -> list[str]:
        """The outbox keys that are SENDING or UNCERTAIN."""
        ...

    async def rows(self, *, states: Sequence[OutboxState] = (), limit: int = 50) -> list[OutboxRow]:
        """Rows, newest first."""
        ...

    async def drafts_besides(self, known: Collection[int], *, limit: int) -> tuple[list[OutboxRow], set[int]]:
        """
        Rows that are HELD and whose ids are not ``known``, oldest first, of an answer in several parts the
        first one; with them the ids of all that are HELD still and known then.
        """
        ...
