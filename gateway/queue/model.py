"""
What goes into the durable queue and comes out of it: frozen values, one for each kind of row. Pure.

`gateway.queue.stores` says what is done with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from agent_core.messages import (
    Attachment,
    Audience,
    InboundMessage,
    OutboundKind,
    OutboundMessage,
    SessionKey,
)
from agent_core.models import Message, Purpose, Usage
from gateway.queue.states import InboxState, OutboxState, Record

OtherHistory = tuple[SessionKey, tuple[Message, ...]]
"""Lines for the history of a session that is not the turn's."""
APPROVAL = "approval"
"""The kind of a step that asks a person."""
APPROVED = "approved"
"""The verdict on a question that was answered with yes."""
WITHDRAWN = "withdrawn"
"""The verdict on a question in whose place the person has written something else."""
LONGEST_NAME = 1000
"""How many bytes a name from outside may have: an index of PostgreSQL takes 2,700 for all of its columns."""
By = Literal["day", "purpose", "session", "model"]


def is_too_long(session: SessionKey) -> bool:
    """Whether a conversation has a name that cannot be kept; no server gives one like that."""
    return len(str(session)) > LONGEST_NAME


@dataclass(frozen=True, slots=True)
class Pending:
    """
    A message to be accepted.

    ``ignore`` holds the reason (a short constant such as ``sender_not_allowed``) when it shall only be
    remembered as seen: its text and context are not stored then. ``quarantine`` holds one when it shall be
    kept whole and wait for a person. ``alone``: it is answered by itself, never together with others (a
    command). ``settles``: what is noted of questions, by their names, in the same transaction: an answer in
    words, or that they are withdrawn. What counts of the first one is then in ``context["settled"]``.
    ``session``: in which session it is worked on, if that is not where it was said.
    """

    message: InboundMessage
    ignore: str | None = None
    quarantine: str | None = None
    alone: bool = False
    settles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    session: SessionKey | None = None

    @property
    def conversation(self) -> SessionKey:
        """The session in which it is worked on."""
        return self.session or self.message.session


@dataclass(frozen=True, slots=True)
class InboxRow:
    """One accepted message and where it is. ``id`` grows in the order of acceptance and is never reused."""

    id: int
    message: InboundMessage
    state: InboxState
    attempts: int
    deferrals: int
    accepted_at: datetime
    turn: str | None
    error: str | None
    next_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """
    A turn that was running and has lost its rows: whoever works on it shall leave off.

    ``why`` is ``withdrawn``, ``left`` or ``stopped``.
    """

    session: SessionKey
    turn: str
    why: str


class Accepted(list[InboxRow]):
    """
    The rows that are new, in order, and what amendments did.

    Args:
        rows: The new rows, as they are after the amendments.
        stopped: The turns that ran and shall be stopped.
    """

    def __init__(self, rows: Iterable[InboxRow] = (), stopped: Iterable[Stopped] = ()) -> None:
        super().__init__(rows)
        self.stopped = tuple(stopped)


@dataclass(frozen=True, slots=True)
class Turn:
    """
    A claim on the head of a session.

    ``id`` stays the same when the turn is claimed again after a crash, with the same rows in the same
    order. ``attempts`` counts starts, this one included; ``first_deferred_s`` is how long ago the first
    deferral of this turn was, 0.0 if there was none. ``is_new``: this claim made the turn, so nothing was
    done for it yet.
    """

    id: str
    session: SessionKey
    fence: int
    rows: tuple[InboxRow, ...]
    attempts: int
    deferrals: int
    first_deferred_s: float = 0.0
    is_new: bool = False
    worker: str = ""
    """The worker that has claimed it; empty: a daemon that has its account."""

    @property
    def head(self) -> InboxRow:
        """The oldest message of the turn."""
        return self.rows[0]

    @property
    def place(self) -> SessionKey:
        """Where its messages were said, and its answer goes."""
        return self.rows[-1].message.session

    @property
    def channel(self) -> str:
        """By which channel its messages came."""
        return self.rows[-1].message.channel


@dataclass(frozen=True, slots=True)
class Lease:
    """What one process may do and no other, for so long by the clock of the database."""

    name: str
    holder: str
    fence: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """The processes that live, by the names under which they hold leases, and who has which account."""

    processes: Sequence[str]
    owners: Mapping[str, str]
    written: bool = False
    """Whether a command beside them has just written something."""
    takers: Sequence[str] = ()
    """Those of the processes that have begun to look for accounts; the others are still starting."""
    workers: Sequence[str] = ()
    """Those of the processes that are workers."""
    lost_workers: Sequence[str] = ()
    """Workers that are dead, and of whom something is to be put right."""
    turns: Mapping[str, int] = field(default_factory=dict)
    """How many turns each worker has in hand."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A turn or an outbox row that was in flight when the process died, and is still open."""

    session: SessionKey
    record: Record
    turn: str | None = None
    outbox_id: int | None = None


@dataclass(frozen=True, slots=True)
class NewOutbound:
    """
    Something to be sent. It belongs to the inbox row of the turn that is answered (``context`` is the one
    of that message; it is filled in when it is empty and the session is the turn's) or, without a turn, to
    nothing. ``hold``: it is a draft, not sent before a person approves it. ``remembered``: see
    `OutboundMessage.remembered`; answers need it not, their turn has its lines.
    """

    channel: str
    account: str
    session: SessionKey
    text: str
    kind: OutboundKind = OutboundKind.REPLY
    context: Mapping[str, Any] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    hold: bool = False
    remembered: bool = False


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One message on its way out. ``message.id`` is its idempotency key, fixed when the row was made."""

    id: int
    inbox_id: int | None
    message: OutboundMessage
    state: OutboxState
    attempts: int
    uncertain_since: datetime | None
    provider_id: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class JournalLine:
    """A line of a history that is committed but perhaps not yet in its file. ``id`` orders the lines."""

    id: int
    session: SessionKey
    message: Message


BACKGROUND_COMMAND = "background command"
"""`Receipt.tool` of a command in the background, beside that of the call that has ordered it."""


class ReceiptOutcome(StrEnum):
    """What is known of an effect."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """The tool says that it was not done, or not well."""
    UNKNOWN = "unknown"
    """It was cut off in between, and nobody has repeated it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """
    What a tool has done.

    Args:
        asked_by: Whose message the turn answers.
        origins: Whose words the model had been shown, as people read them; empty: the owner's alone.
        approved_by: Who has said yes to this call; empty: the policy.
        told: How the result began.
        undo: How a person takes it back.
    """

    session: SessionKey
    tool: str
    effect: str
    arguments: Mapping[str, Any]
    asked_by: str
    origins: str = ""
    approved_by: str = ""
    turn: str = ""
    number: int = 0
    at: datetime | None = None
    outcome: ReceiptOutcome = ReceiptOutcome.RUNNING
    told: str = ""
    undo: str = ""
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """
    One step of a turn: ``kind`` is ``model``, ``tool`` or `APPROVAL`, ``result`` None while it has only
    started.
    """

    number: int
    kind: str
    digest: str
    request: Mapping[str, Any]
    result: Mapping[str, Any] | None
    receipt: Receipt | None = None
    """Of a tool that is about to have an effect: kept when the steps of the turn are dropped."""


@dataclass(frozen=True, slots=True)
class Completion:
    """
    Everything that becomes true together when a turn is answered.

    ``others`` are lines for the histories of other sessions (an alert, where it is read), ``entry`` a line of
    the run ledger, ``collected`` what waits for the digest. ``call`` is the model call that ``usage`` is of,
    where calls in flight are noted (`gateway.queue.sql.calls_in_flight`).
    """

    outbound: Sequence[NewOutbound] = ()
    history: Sequence[Message] = ()
    usage: Usage = field(default_factory=Usage)
    purpose: Purpose = Purpose.CHAT
    others: Sequence[OtherHistory] = ()
    entry: Entry | None = None
    collected: Sequence[Collected] = ()
    call: str = ""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Tokens of one day (``YYYY-MM-DD``, in the zone of the store), session, purpose and model."""

    day: str
    session: str
    purpose: str
    model: str
    usage: Usage


class JobKind(StrEnum):
    """What a job does when it is due."""

    REMIND = "remind"
    """Its text is sent as it is; no model is asked."""
    ASK = "ask"
    """Its text is asked of the model, and the answer is sent."""


class JobState(StrEnum):
    """Whether a job will run again."""

    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"
    """It was for once, and has run."""


SCOPE = "scope"
"""In the context of a message that joins a history: who alone may be shown it there (`Message.scope`)."""
ORIGINS = "origins"
"""In the context of a job, and in the note of its run: whose words it was made of; nothing: its person's."""


@dataclass(frozen=True, slots=True)
class Job:
    """
    Something to be done at a time, for a person, in a conversation.

    Args:
        id: Short, for people to type.
        kind, text: What is done.
        timing: When, as ``gateway.proactive.jobs.triggers`` reads and writes it.
        session, account: The conversation in which it answers, and the bot's address there.
        person: Who wanted it; without this person's right to speak it does not run.
        context: The channel's note of the message that it was wanted in, to answer it.
        next_at: The scheduled instant that is waited for; None: there is none.
        last_at: The scheduled instant that was run last.
        revision: Grows with every change that a person makes.
        note: Why it did not run the last time; empty if it did.
    """

    id: str
    kind: JobKind
    text: str
    timing: str
    session: SessionKey
    account: str
    person: str
    created_at: datetime
    audience: Audience = Audience.DIRECT
    context: Mapping[str, Any] = field(default_factory=dict)
    state: JobState = JobState.ACTIVE
    next_at: datetime | None = None
    last_at: datetime | None = None
    revision: int = 1
    note: str = ""


class Outcome(StrEnum):
    """What became of a tick or a job."""

    SKIPPED = "skipped"
    SILENT = "silent"
    DELIVERED = "delivered"
    COLLECTED = "collected"
    """It waits for the digest."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    A line of the run ledger.

    Args:
        name: Whose: the heartbeat's channel, or ``job:ID``.
        instant: The scheduled instant; with ``name`` the identity of what ran.
        outcome, reason: What became of it and why.
        tokens, calls, took_s: What it cost.
        said: The fingerprint of what was said, to recognise a repetition.
        at: When that was noted.
        until, ticks: A line of SKIPPED stands for so many ticks in a row, up to that instant.
    """

    name: str
    instant: datetime
    outcome: Outcome
    reason: str = ""
    tokens: int = 0
    calls: int = 0
    took_s: float = 0.0
    said: str = ""
    at: datetime | None = None
    until: datetime | None = None
    ticks: int = 1


@dataclass(frozen=True, slots=True)
class Collected:
    """An alert that waits for the digest to ``person`` on ``channel``; ``id`` is 0 before it is stored."""

    channel: str
    person: str
    text: str
    at: datetime
    id: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """
    A question whose turn has not ended.

    Args:
        asked: The addresses of those who may decide, besides the owner.
        tool: The tool that it is about; if there are several, their names with commas between them.
        until: When it is too late for a yes.
        verdict: What was decided; None: it waits.
        people: The addresses of those whose messages the turn answers.
        places: The conversations in which it was asked.
        turn: The turn that waits for it.
        at: When it was asked.
        offer, origins: What could be granted (`agent_core.tools.grants.Scope`), and whose words it named, as
            JSON has them.
        proof: How well the messages of the turn prove who has written them; see `proof_of`.
        form: What a server wants to have filled in (`agent_core.tools.forms.Form`), as JSON has it; None: a
            yes is wanted.
    """

    name: str
    session: SessionKey
    asked: tuple[str, ...]
    tool: str
    until: datetime
    verdict: Mapping[str, Any] | None
    people: tuple[str, ...] = ()
    places: tuple[SessionKey, ...] = ()
    turn: str = ""
    at: datetime | None = None
    offer: Any = None
    origins: Any = None
    form: Any = None
    proof: int = 0


class Decided(NamedTuple):
    """What was decided of a question, the conversation of its turn, and the tool that it was about."""

    session: SessionKey
    verdict: str
    tool: str


@dataclass(frozen=True, slots=True)
class Spent:
    """
    The sum of what belongs together.

    Args:
        name: The day, purpose, session or model; empty where the model is not known.
        usage: What it comes to; ``cost_usd`` is what is known of it.
        priced: Whether the price of all of it is known.
    """

    name: str
    usage: Usage
    priced: bool
