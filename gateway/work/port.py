"""
The contract of the durable queue: `WorkStore` keeps the truth, `Dispatcher` only says that there is work.

Semantics, with the reasons and the measurements: the state machines are in ``states.py``; one adapter is
``sqlite.py`` with ``lanes.py``. No caller sees SQL or an engine, and every delay goes in as seconds, so that
the adapter's own clock decides when it is over. All methods may raise `StoreUnavailable` (a full disk, a
locked or broken database): then nothing of the call has happened. A call that is cancelled may or may not
have happened. A move that the state machines do not know (a send that a person has dropped meanwhile)
raises `IllegalMove` and changes nothing.

A *turn* is one or more inbox rows of one session that are answered together. It is fenced: whoever claimed
it last owns it, and `complete`, `retry`, `bury` and the step methods of an older claim raise `LostTurn`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from agent_core.messages import SessionKey
from agent_core.models import Purpose, Usage
from gateway.work.rows import (
    Completion,
    InboxRow,
    JournalLine,
    NewOutbound,
    OutboxRow,
    Pending,
    Step,
    StoreStats,
    Turn,
    UsageRow,
)
from gateway.work.states import InboxState, OutboxState

__all__ = [
    "Completion",
    "Dispatcher",
    "InboxRow",
    "JournalLine",
    "LostTurn",
    "NewOutbound",
    "OutboxRow",
    "Pending",
    "Step",
    "StoreCorrupt",
    "StoreStats",
    "StoreTooNew",
    "StoreUnavailable",
    "StoreUnusable",
    "Turn",
    "UsageRow",
    "WorkStore",
]


class StoreUnavailable(Exception):
    """My disk does not take anything at the moment; nothing is lost, I will try again."""

    temporary = True

    def __init__(self, detail: str = "", /, **fields: Any) -> None:
        self.public = (type(self).__doc__ or "").strip()
        self.fields = fields
        super().__init__(detail or self.public)


class StoreUnusable(Exception):
    """My database cannot be used; my operator must look at it."""

    temporary = False

    def __init__(self, detail: str = "", /, **fields: Any) -> None:
        self.public = (StoreUnusable.__doc__ or "").strip()
        self.fields = fields
        super().__init__(detail or self.public)


class StoreCorrupt(StoreUnusable):
    """The database is damaged, or is no database of ours. Raised when it is opened; it was not changed."""


class StoreTooNew(StoreUnusable):
    """The database was written by a later version. Raised when it is opened; it was not changed."""


class LostTurn(Exception):
    """This turn was claimed again by somebody else; what was done for it must be thrown away."""

    temporary = False
    public = "Somebody else is answering this."


class WorkStore(Protocol):
    """Where the truth is."""

    # ── taking in ──
    async def accept(
        self, channel: str, account: str, batch: Sequence[Pending], positions: Mapping[str, str]
    ) -> list[InboxRow]:
        """
        Commit a batch and the channel's new positions in one transaction, durably.

        A message whose (channel, account, native_id) is known is left out: a success without work. Returns
        the rows that are new, in order; those with ``ignore`` have the state IGNORED.
        """
        ...

    async def position(self, channel: str, account: str, name: str) -> str | None:
        """The committed position, or None."""
        ...

    # ── turns ──
    async def claim(self, session: SessionKey, *, merge: int = 1) -> Turn | None:
        """
        Take the head of the session: up to ``merge`` waiting rows as one turn, ``ready → running``.

        ``attempts`` is raised durably enough to survive SIGKILL before this returns. A turn that was
        claimed before comes back with the same id and rows. None: nothing waits, the head waits for its
        retry time, or the session is running under a live claim.
        """
        ...

    async def steps(self, turn: Turn) -> list[Step]:
        """What earlier starts of this turn have done, by number."""
        ...

    async def step_started(self, turn: Turn, step: Step) -> None:
        """Record a step (``result`` None) durably before it has an effect."""
        ...

    async def step_finished(self, turn: Turn, step: Step) -> None:
        """Record the result durably; replaces a record with the same number."""
        ...

    async def complete(self, turn: Turn, completion: Completion) -> list[OutboxRow]:
        """
        The rows become ANSWERED; history lines, outbox rows and usage are committed with it, the steps are
        dropped. The outbox rows hang on the last row of the turn; without any, the rows are SETTLED.
        """
        ...

    async def retry(self, turn: Turn, error: str, *, delay_s: float, deferral: bool) -> None:
        """
        ``running → ready``, not before ``delay_s``. ``deferral``: it was not the message's fault (the
        provider is away), so the start does not count in ``attempts`` but in ``deferrals``.
        """
        ...

    async def bury(self, turn: Turn, error: str, outbound: Sequence[NewOutbound] = ()) -> list[OutboxRow]:
        """The turn failed for good: its rows are DEAD and the apology is in the outbox, together."""
        ...

    async def release(self, turn: Turn) -> None:
        """Park a turn at shutdown: ``running → ready``, and this start does not count. Its steps stay."""
        ...

    async def due_in(self, session: SessionKey) -> float | None:
        """
        In how many seconds the head of the session is due (0.0: now). None: nothing waits, or a turn of the
        session is running. To be asked when `claim` gave nothing, so that a retry is not forgotten.
        """
        ...

    # ── history journal ──
    async def journal(self, session: SessionKey | None = None) -> list[JournalLine]:
        """Lines that may not be in their files yet, oldest first."""
        ...

    async def journal_done(self, ids: Sequence[int]) -> None:
        """These lines are durable in their files."""
        ...

    # ── sending ──
    async def post(self, outbound: Sequence[NewOutbound]) -> list[OutboxRow]:
        """Put messages that answer nothing into the outbox."""
        ...

    async def next_sends(
        self, channel: str, account: str, *, busy: Sequence[SessionKey] = (), limit: int = 16
    ) -> list[OutboxRow]:
        """
        What can be sent now: of each session that is not in ``busy`` its oldest row that is neither SENT
        nor DEAD nor UNKNOWN, if that one is due. So a destination gets its messages in order.
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

    async def uncertain(self, row: OutboxRow) -> None:
        """``sending → uncertain``, durable before this returns: from now on the server may have it."""
        ...

    async def sent(self, row: OutboxRow, provider_id: str) -> None:
        """The server has it. When nothing of its inbox rows is left to send, they are SETTLED."""
        ...

    async def send_failed(
        self,
        row: OutboxRow,
        error: str,
        *,
        delay_s: float | None,
        certain: bool = True,
        apology: str | None = None,
    ) -> None:
        """
        Not sent. ``delay_s`` None: for good (DEAD). Otherwise again after that time: as PENDING if it is
        ``certain`` that the server does not have it, else it stays UNCERTAIN.

        With ``apology`` this text is put into the outbox in its place, in the same commit, unless a part of
        the same answer has led to one already.
        """
        ...

    async def park(self, row: OutboxRow, error: str) -> None:
        """Nobody can find out whether it was sent: UNKNOWN, a person decides."""
        ...

    async def delivered(self, channel: str, account: str, provider_id: str) -> str | None:
        """The outbox key (``OutboundMessage.id``) that was sent as ``provider_id``."""
        ...

    # ── start, care, looking ──
    async def recover(self) -> None:
        """
        Once at start, before anything else: running turns become ready again, what was ``sending`` becomes
        pending, what is uncertain stays so (also if it was just being sent again). May be repeated, also
        after a crash in the middle.
        """
        ...

    async def open_sessions(self) -> list[tuple[SessionKey, float]]:
        """Sessions with something to do, and in how many seconds their head is due (0.0: now)."""
        ...

    async def inbox(
        self, *, states: Sequence[InboxState] = (), session: SessionKey | None = None, limit: int = 50
    ) -> list[InboxRow]:
        """Rows, newest first. No states: all but IGNORED."""
        ...

    async def inbox_row(self, inbox_id: int) -> tuple[InboxRow, list[OutboxRow]] | None:
        """One row and what was or will be sent for it."""
        ...

    async def outbox(self, *, states: Sequence[OutboxState] = (), limit: int = 50) -> list[OutboxRow]:
        """Rows, newest first."""
        ...

    async def requeue(self, inbox_id: int) -> SessionKey | None:
        """
        A person wants it tried again: a DEAD row becomes READY with fresh counters, DEAD or UNKNOWN sends
        of an answered row become PENDING. Returns the session, or None if there was nothing to do.
        """
        ...

    async def drop(self, inbox_id: int) -> bool:
        """A person gives it up: READY or DEAD rows become IGNORED, its unsent answers DEAD."""
        ...

    async def reset_session(self, session: SessionKey) -> None:
        """
        Drop what waits in a session, before its history is reset: READY rows become IGNORED, and journal
        lines that are not in the file yet are forgotten, so that they cannot come back after the reset.
        """
        ...

    async def add_usage(self, session: SessionKey, usage: Usage, purpose: Purpose) -> None:
        """Note what was spent outside of a completed turn (a consolidation, a turn that was buried)."""
        ...

    async def usage(self, *, days: int = 30) -> list[UsageRow]:
        """What was spent, newest day first."""
        ...

    async def stats(self) -> StoreStats:
        """Counts and ages."""
        ...

    async def prune(self, *, older_than_s: float) -> int:
        """Forget payloads of rows that ended longer ago than this; their keys stay. Returns how many."""
        ...

    # ── leases ──
    async def lease(self, name: str, *, holder: str, ttl_s: float) -> int | None:
        """Get or renew a lease: its fence (it grows with each new holder), or None if it is taken."""
        ...

    async def release_lease(self, name: str, *, holder: str) -> None:
        """Give it back early; nothing happens if it is not held."""
        ...

    async def aclose(self) -> None:
        """Finish what is queued and let go of the database."""
        ...


RunSession = Callable[[SessionKey], Awaitable[None]]
"""Works on one session until nothing is due; called by at most one task per session at a time."""


class Dispatcher(Protocol):
    """Says that a session has work and gets it run: in order per session, in parallel across sessions."""

    def wake(self, session: SessionKey, *, after_s: float = 0.0) -> None:
        """There is work, now or after a while. Never blocks; repeated wake-ups of one session are one."""
        ...

    async def run(self, run_session: RunSession) -> None:
        """Run sessions until `stop`; then return as soon as nothing runs."""
        ...

    def stop(self) -> None:
        """Start no session any more."""
        ...

    def running(self) -> Sequence[SessionKey]:
        """The sessions that run at this moment."""
        ...
