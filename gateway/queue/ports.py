"""
The contract of the durable queue: `WorkStore` keeps the truth, `Dispatcher` only says that there is work.

Semantics, with the reasons and the measurements: the state machines are in ``states.py``; one adapter is
``gateway/queue/sqlite/store.py`` with ``gateway/turns/dispatcher.py``. No caller sees SQL or an engine, and
every delay goes in as seconds, so that the adapter's own clock decides when it is over. All methods may raise
`StoreUnavailable` (a full disk, a locked or broken database): then nothing of the call has happened. A call
that is cancelled may or may not have happened. A move that the state machines do not know (a send that a
person has dropped meanwhile) raises `IllegalMove` and changes nothing.

A *turn* is one or more inbox rows of one session that are answered together. It is fenced: whoever claimed
it last owns it, and `complete`, `retry`, `bury` and the step methods of an older claim raise `LostTurn`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from agent_core.messages import Amendment, SessionKey
from agent_core.models import Purpose, Usage
from gateway.queue.errors import LostTurn, StoreCorrupt, StoreTooNew, StoreUnavailable, StoreUnusable
from gateway.queue.model import (
    Accepted,
    By,
    Collected,
    Completion,
    Entry,
    InboxRow,
    Job,
    JobState,
    JournalLine,
    NewOutbound,
    OtherHistory,
    OutboxRow,
    Pending,
    Question,
    Spent,
    Step,
    Stopped,
    Suspect,
    Turn,
    UsageRow,
)
from gateway.queue.states import InboxState, OutboxState, StoreStats
from gateway.queue.wakeups import Work

__all__ = [
    "IGNORED_S",
    "QUARANTINE_S",
    "Accepted",
    "ApprovalStore",
    "Completion",
    "Dispatcher",
    "InboxRow",
    "JobStore",
    "JournalLine",
    "LeasePort",
    "LostTurn",
    "NewOutbound",
    "OutboxRow",
    "Pending",
    "Queue",
    "RunSession",
    "StateStore",
    "Step",
    "Stopped",
    "StoreCorrupt",
    "StoreStats",
    "StoreTooNew",
    "StoreUnavailable",
    "StoreUnusable",
    "Suspect",
    "Turn",
    "UsageRow",
    "UsageStore",
    "WorkStore",
]


QUARANTINE_S = 30 * 86_400.0
"""How long a quarantined message waits for a person."""
IGNORED_S = 7 * 86_400.0
"""How long an ignored message can be looked at, at most."""
RunSession = Callable[[SessionKey], Awaitable[float | None]]
"""
Works on one session, called by at most one task per session at a time. Returns in how many seconds it is to
be called again; None: when the session has work again.
"""


class LeasePort(Protocol):
    """Named rights that one holder has at a time, for as long as it renews them."""

    async def lease(self, name: str, *, holder: str, ttl_s: float) -> int | None:
        """Get or renew a lease: its fence (it grows with each new holder), or None if it is taken."""
        ...

    async def release_lease(self, name: str, *, holder: str) -> None:
        """Give it back early; nothing happens if it is not held."""
        ...


class StateStore(Protocol):
    """What the gateway itself remembers over restarts: a text for each topic."""

    async def read_state(self, topic: str) -> str | None:
        """What was written last, or None."""
        ...

    async def write_state(self, topic: str, value: str) -> None:
        """Remember a text durably, in the place of what was remembered of this topic."""
        ...


class WorkStore(LeasePort, StateStore, Protocol):
    """Where the truth is."""

    # ── taking in ──
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

    async def admit(self, inbox_id: int) -> SessionKey:
        """
        A person lets a quarantined message in: QUARANTINED → READY, its sender counts as verified
        (``sender.verified`` and ``context["admitted"]`` are True). Returns the session to wake.

        Raises:
            IllegalMove: It is not quarantined, or its text is gone.
        """
        ...

    async def position(self, channel: str, account: str, name: str) -> str | None:
        """The committed position, or None."""
        ...

    # ── turns ──
    async def claim(self, session: SessionKey, *, merge: int = 1, aside: bool = False) -> Turn | None:
        """
        Take the head of the session: up to ``merge`` waiting rows as one turn, ``ready → running``.

        ``attempts`` is raised durably enough to survive SIGKILL before this returns. A turn that was
        claimed before comes back with the same id and rows. None: nothing waits, the head waits for its
        retry time, or the session is running under a live claim.

        What no model answers (a message that is ``alone``, a reaction) overtakes a head that waits for its
        retry time, so that commands work while there is no model; with ``aside`` only such a one is taken,
        also beside a turn that is running, but never two at once. Nothing else is ever overtaken.
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

    async def retry(
        self, turn: Turn, error: str, *, delay_s: float, deferral: bool, waits_for: str | None = None
    ) -> None:
        """
        ``running → ready``, not before ``delay_s``, or `due_now`. ``deferral``: it was not the message's
        fault (the provider is away), so the start does not count in ``attempts`` but in ``deferrals``.
        """
        ...

    async def postpone(self, turn: Turn, why: str, *, delay_s: float, waits_for: str | None = None) -> None:
        """
        ``running → ready``, not before ``delay_s``, or `due_now`. Nothing has failed: neither the start nor
        the time counts as an attempt or a deferral. Its steps stay.
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
        In how many seconds the head of the session, or what overtakes it, is due (0.0: now). None: nothing
        waits, or a turn of the session is running. To be asked when `claim` gave nothing, so that a retry is
        not forgotten.
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

    async def park(self, row: OutboxRow, error: str) -> None:
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

    async def outbox_row(self, outbox_id: int) -> OutboxRow | None:
        """One row of the outbox."""
        ...

    async def outbox_by_key(self, key: str) -> OutboxRow | None:
        """The newest row of the outbox with this key (``OutboundMessage.id``)."""
        ...

    async def delivered(self, channel: str, account: str, provider_id: str) -> str | None:
        """The outbox key (``OutboundMessage.id``) that was sent as ``provider_id``."""
        ...

    async def unconfirmed(self, channel: str, account: str) -> list[str]:
        """The outbox keys that are SENDING or UNCERTAIN."""
        ...

    # ── start, care, looking ──
    async def recover(self) -> None:
        """
        Once at start, before anything else: running turns become ready again, what was ``sending`` becomes
        pending, what is uncertain stays so (also if it was just being sent again). May be repeated, also
        after a crash in the middle. What was running or sending is remembered as in flight at a death.
        """
        ...

    async def suspects(self) -> list[Suspect]:
        """
        The turns and outbox rows that were in flight at a death and are still open. What is dead-lettered
        leaves this list, and is no suspect any more if it is tried again.
        """
        ...

    async def due_now(self, waits_for: str) -> None:
        """
        What a turn or an outbox row waits for is there: whatever was put back with this ``waits_for`` is due
        at once.
        """
        ...

    async def open_sessions(self) -> list[tuple[SessionKey, float]]:
        """Sessions with something to do, and in how many seconds their head is due (0.0: now)."""
        ...

    async def waiting_people(self) -> dict[SessionKey, str]:
        """The address of whoever sent the head of each session that waits."""
        ...

    async def inbox(
        self, *, states: Sequence[InboxState] = (), session: SessionKey | None = None, limit: int = 50
    ) -> list[InboxRow]:
        """Rows, newest first. No states: all but IGNORED."""
        ...

    async def quarantined_after(self, inbox_id: int, *, limit: int) -> list[InboxRow]:
        """Rows with a higher id that are QUARANTINED, oldest first."""
        ...

    async def inbox_by_key(self, channel: str, account: str, native_id: str) -> InboxRow | None:
        """The row of a message that was accepted; None if there was none, or only a digest of it is left."""
        ...

    async def taken_back(self, *, within_s: float, limit: int = 200) -> list[InboxRow]:
        """Rows that are IGNORED although a turn had begun, accepted within this time, newest first."""
        ...

    async def inbox_row(self, inbox_id: int) -> tuple[InboxRow, list[OutboxRow]] | None:
        """One row and what was or will be sent for it."""
        ...

    async def outbox(self, *, states: Sequence[OutboxState] = (), limit: int = 50) -> list[OutboxRow]:
        """Rows, newest first."""
        ...

    async def held_after(self, outbox_id: int, *, limit: int) -> list[OutboxRow]:
        """Rows with a higher id that are HELD, oldest first; of an answer in several parts the first one."""
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

    async def add_usage(self, session: SessionKey, usage: Usage, purpose: Purpose) -> None:
        """Note what was spent outside of a completed turn (a consolidation, a call of an unfinished turn)."""
        ...

    async def usage(self, *, days: int = 30) -> list[UsageRow]:
        """What was spent, newest day first."""
        ...

    async def stats(self) -> StoreStats:
        """Counts and ages."""
        ...

    async def prune(self, *, older_than_s: float) -> int:
        """
        Forget payloads of rows that ended longer ago than this; their keys stay. Returns how many.

        Of rows that were ignored longer ago than this or than `IGNORED_S` only a digest of the key stays,
        which recognises the message if it comes again; nothing else finds them any more. What nobody let in
        for `QUARANTINE_S` is IGNORED as ``quarantine_expired``.
        """
        ...

    async def last_ids(self) -> tuple[int, int]:
        """The highest ids of inbox and outbox."""
        ...

    @property
    def identity(self) -> str:
        """The random text that tells this database from every other; a secret."""
        ...

    @property
    def refusing(self) -> bool:
        """Whether the newest commit was refused by the disk."""
        ...

    @property
    def stalled_s(self) -> float:
        """For how long the disk has not come back from a call; for liveness checks and metrics."""
        ...

    async def aclose(self) -> None:
        """Finish what is queued and let go of the database."""
        ...


class ApprovalStore(Protocol):
    """Asks people about steps."""

    async def ask(
        self, turn: Turn, step: Step, outbound: Sequence[NewOutbound], *, why: str, delay_s: float
    ) -> list[OutboxRow]:
        """
        Record a question and put what asks it into the outbox, unless that was done before; the turn is
        ``running → ready``, not before ``delay_s``, or at once if the question is decided. Neither the start
        nor the time counts.

        Raises:
            LostTurn: Not any more ours.
        """
        ...

    async def settle(self, turn: Turn, step: Step, outbound: Sequence[NewOutbound]) -> Mapping[str, Any]:
        """
        Decide a question as ``step.result`` says and put ``outbound`` into the outbox, unless it is decided.
        Returns what counts.

        Raises:
            LostTurn: Not any more ours.
        """
        ...

    async def questions(self) -> list[Question]:
        """The questions of all turns that have not ended, oldest first."""
        ...

    async def decide(self, name: str, verdict: Mapping[str, Any]) -> Question | None:
        """
        A person has decided: the turn is due at once. Nothing is changed if it is decided already, or too
        late. Returns the question as it is then; None if there is none of that name.
        """
        ...


class Dispatcher(Protocol):
    """Says that a session has work and gets it run: in order per session, in parallel across sessions."""

    def wake(
        self, session: SessionKey, *, after_s: float = 0.0, first: bool = False, person: str = ""
    ) -> None:
        """
        There is work, now or after a while. Never blocks; repeated wake-ups of one session are one.

        With ``first`` the session comes before all others, as long as it has work. ``person``: whose work it
        is, as long as it has some; people take turns.
        """
        ...

    def hear(self, work: Work) -> None:
        """The queue says that there is work (`Wakeups.session`)."""
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


class JobStore(Protocol):
    """Jobs, ledger and digest."""

    # ── jobs ──
    async def add_job(self, job: Job, *, at_most: int, persons: Sequence[str] = ()) -> None:
        """
        Keep a job.

        Args:
            job: The job; its id must be new.
            at_most: How many jobs that are not done the person may have, this one included.
            persons: All addresses that are this person.

        Raises:
            TooManyJobs: There are so many already; nothing was kept.
        """
        ...

    async def jobs(self, *, done: bool = False, until: datetime | None = None) -> list[Job]:
        """
        All jobs, the next one first; with ``done`` also those that were for once and have run, with ``until``
        only those that wait for an instant up to then.
        """
        ...

    async def job(self, job_id: str) -> Job | None:
        """One job."""
        ...

    async def set_job_state(self, job_id: str, state: JobState, next_at: datetime | None) -> Job | None:
        """A person pauses or resumes a job; returns it as it is now, None if there is no such job."""
        ...

    async def remove_job(self, job_id: str) -> bool:
        """A person removes a job; whether there was one."""
        ...

    async def job_fired(
        self, job_id: str, revision: int, instant: datetime, next_at: datetime | None, *, note: str = ""
    ) -> bool:
        """
        A scheduled instant was dealt with (run, or not run because of ``note``); the next one is waited for.
        Without a next one the job is done.

        Nothing happens, and False is returned, if a person has changed the job since ``revision``: what they
        want now counts, and the instant is recognised by the inbox if it comes again.
        """
        ...

    # ── ledger ──
    async def note(self, entry: Entry) -> None:
        """
        Add a line. A known (name, instant) adds nothing; a skip for the same reason as the line before is
        counted there.
        """
        ...

    async def ledger(self, *, name: str | None = None, limit: int = 50) -> list[Entry]:
        """Lines, newest first."""
        ...

    async def was_said(self, said: str, *, since: datetime) -> bool:
        """Whether something with this fingerprint was delivered or collected since then."""
        ...

    # ── digest ──
    async def collected(self) -> list[Collected]:
        """What waits for the digest, oldest first."""
        ...

    async def prune_plans(self, *, older_than_s: float) -> int:
        """Forget lines of the ledger and jobs that were done longer ago than this. Returns how many."""
        ...


class UsageStore(Protocol):
    """Sums of what models have cost."""

    async def spent_on(self, day: str) -> Usage:
        """All of one day. Looks at the rows of that day alone."""
        ...

    async def spent(self, *, since: str, by: By) -> list[Spent]:
        """From a day on: days in their order, anything else with the most tokens first."""
        ...


@dataclass(frozen=True, slots=True)
class Queue:
    """The stores of one queue: one database, and each call is one transaction over all of it."""

    store: WorkStore
    jobs: JobStore
    usage: UsageStore
    approvals: ApprovalStore
