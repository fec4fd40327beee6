"""The inbox: what came in, and what people decide about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from agent_core.messages import Amendment, SessionKey
from gateway.queue.model import Accepted, InboxRow, OutboxRow, Pending
from gateway.queue.states import InboxState

QUARANTINE_S = 30 * 86_400.0
"""How long a quarantined message waits for a person."""
IGNORED_S = 7 * 86_400.0
"""How long an ignored message can be looked at, at most."""


class InboxStore(Protocol):
    """The inbox: what came in, and what people decide about it."""

    async def accept(
        self,
        channel: str,
        account: str,
        batch: Sequence[Pending],
        positions: Mapping[str, str],
        amendments: Sequence[Amendment] = (),
    ) -> Accepted:
        """
        Commit a batch and the channel's new positions in one transaction, durably.

        A message whose (channel, account, native_id) is known is left out: a success without work. Returns
        the rows that are new, in order; those with ``ignore`` have the state IGNORED, those with
        ``quarantine`` QUARANTINED.

        Then, in the same transaction, the amendments, each to what this channel and account accepted before:

        - ``replace``: a row of the same sender that waits and was never in a turn has the new text.
        - ``withdraw``: a row of the same sender that waits (or is quarantined) is IGNORED as ``withdrawn``.
          In a turn that runs, or has steps that must not be done twice, it is marked; as soon as all rows of
          that turn are marked they are IGNORED, and otherwise the turn is answered as it is. A marked row is
          left out when a turn without steps is taken up again.
        - ``leave``: whatever waits or runs in the sessions of ``session.conversation`` is IGNORED as
          ``left``, and what is unsent there is DEAD.
        - ``stop``: whatever waits or runs in ``session`` and was accepted before the message ``native_id`` is
          IGNORED as ``stopped``; the message's ``context["stopped"]`` says how many. If that message is not
          new, nothing happens; without a ``native_id`` all are meant.

        A turn whose rows are IGNORED is lost to whoever works on it; `Accepted.stopped` names it.
        """
        ...

    async def work_in(self, sessions: Mapping[int, SessionKey]) -> int:
        """
        Let these messages, by their rows, be worked on in these sessions, as far as they are READY; returns
        how many were in another one. Nobody works on anything at this moment.
        """
        ...

    async def position(self, channel: str, account: str, name: str) -> str | None:
        """The committed position, or None."""
        ...

    async def admit(self, inbox_id: int) -> SessionKey:
        """
        A person lets a quarantined message in: QUARANTINED → READY. A sender who was not verified counts as
        verified from then on, and ``context["admitted"]`` says so. Returns the session to wake.

        Raises:
            IllegalMove: It is not quarantined, or its text is gone.
        """
        ...

    async def rows(
        self, *, states: Sequence[InboxState] = (), session: SessionKey | None = None, limit: int = 50
    ) -> list[InboxRow]:
        """Rows, newest first. No states: all but IGNORED."""
        ...

    async def taken(
        self, channel: str, *, sender: str = "", session: SessionKey | None = None, limit: int = 20
    ) -> list[InboxRow]:
        """
        Messages of people that were taken (neither IGNORED nor QUARANTINED nor DEAD), newest first: of a
        ``sender``, whatever the case of its letters, or in the conversation of ``session`` with its threads.
        """
        ...

    async def row(self, inbox_id: int) -> tuple[InboxRow, list[OutboxRow]] | None:
        """One row and what was or will be sent for it."""
        ...

    async def by_key(self, channel: str, account: str, native_id: str) -> InboxRow | None:
        """The row of a message that was accepted; None if there was none, or only a digest of it is left."""
        ...

    async def quarantined_besides(
        self, known: Collection[int], *, limit: int
    ) -> tuple[list[InboxRow], set[int]]:
        """
        Rows that are QUARANTINED and whose ids are not ``known``, oldest first; with them the ids of all that
        are QUARANTINED still and known then. No highest id will do: rows may be committed in another order.
        """
        ...

    async def taken_back(self, *, within_s: float, limit: int = 200) -> list[InboxRow]:
        """Rows that are IGNORED although a turn had begun, accepted within this time, newest first."""
        ...

    async def background_jobs(self, *, open_only: bool = False, limit: int = 50) -> list[InboxRow]:
        """Rows of background jobs, newest first; ``open_only``: those that have not come to an end."""
        ...

    async def requeue(self, inbox_id: int) -> SessionKey | None:
        """
        A person wants it tried again: a DEAD row becomes READY with fresh counters, DEAD or UNKNOWN sends
        of an answered row become PENDING, but no draft that was rejected, and nothing for a conversation
        that the bot has left. Returns the session, or None if there was nothing to do.
        """
        ...

    async def drop(self, inbox_id: int) -> bool:
        """A person gives it up: READY, DEAD or QUARANTINED rows become IGNORED, its unsent answers DEAD."""
        ...

    async def reset_session(self, session: SessionKey) -> None:
        """
        Drop what waits in a session, before its history is reset: READY rows become IGNORED, and journal
        lines that are not in the file yet are forgotten, so that they cannot come back after the reset.
        """
        ...
