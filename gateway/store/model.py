"""
The values that the durable queue accepts and returns: one frozen class for each kind of row. Pure.
`gateway.store.stores` lists the stores that work with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from agent_core.messages import (
    Attachment,
    Audience,
    InboundMessage,
    MessageContext,
    OutboundKind,
    OutboundMessage,
    SessionKey,
)
from agent_core.models import Message, Purpose, ToolCall, Usage
from agent_core.provenance import Origins, from_json
from agent_core.tools.forms import Form, form_of
from agent_core.tools.grants import Grant, GrantKind, Scope
from gateway.store.states import CrashRecord, InboxState, OutboxState

OtherHistory = tuple[SessionKey, tuple[Message, ...]]
"""Lines for the history of a session other than the turn's."""
APPROVAL = "approval"
"""The kind of a step that asks a person."""
APPROVED = "approved"
"""The verdict on a question that was answered with yes."""
WITHDRAWN = "withdrawn"
"""The verdict on a question that the person replaced by asking for something else."""
EDITED = "edited"
"""The verdict on a question that ended undecided, because what the person had asked for was edited."""
DELETED, STOPPED, LEFT = "deleted", "stopped", "left"
"""The verdicts on questions that ended undecided: with the request, by a stop, or with the bot's room."""
EXPIRED = "expired"
"""The verdict on a question that nobody answered in time."""
MAX_NAME = 1000
"""The maximum length in bytes of a name from outside: an index of PostgreSQL takes 2,700 for all columns."""
UsageGroup = Literal["day", "purpose", "session", "model"]


def is_too_long(session: SessionKey) -> bool:
    """Return True if a conversation's name is too long to be stored; no server sends such a name."""
    return len(str(session)) > MAX_NAME


SPEECH_CHANNEL = "speech"
"""The channel of rows that are to be spoken; no other channel has this name."""


@dataclass(frozen=True, slots=True)
class Pending:
    """
    A message to be accepted.

    ``ignore`` holds the reason (a short constant such as ``sender_not_allowed``) if the message is only
    recorded as seen; its text and context are not stored then. ``quarantine`` holds the reason if the whole
    message is stored and waits for a person. ``alone``: the message is a turn by itself and never merged with
    others (a command). ``settles`` maps names of questions to what is recorded about them in the same
    transaction: an answer in words, or their withdrawal; ``grants`` are what a yes gives besides. The
    verdicts that count are then in ``notes.settled``. ``session`` is the session in which the message is
    processed, if that is not where it was written.
    """

    message: InboundMessage
    ignore: str | None = None
    quarantine: str | None = None
    alone: bool = False
    settles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    grants: Mapping[str, Grant] = field(default_factory=dict)
    session: SessionKey | None = None

    @property
    def conversation(self) -> SessionKey:
        """The session in which the message is processed."""
        return self.session or self.message.session


@dataclass(frozen=True, slots=True)
class InboxRow:
    """One accepted message and its state. ``id`` grows in the order of acceptance and is never reused."""

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
class StoppedTurn:
    """
    A running turn that has lost its rows: its handler must stop.

    ``why``: ``withdrawn``, ``left``, ``stopped``, or ``edited`` (the messages wait again).
    """

    session: SessionKey
    turn: str
    why: str


class AcceptedBatch(list[InboxRow]):
    """The new rows of a batch, in order and amended, and the running turns to stop."""

    def __init__(self, rows: Iterable[InboxRow] = (), stopped: Iterable[StoppedTurn] = ()) -> None:
        super().__init__(rows)
        self.stopped = tuple(stopped)


@dataclass(frozen=True, slots=True)
class Turn:
    """
    A claim on the head of a session.

    ``id`` stays the same when the turn is claimed again after a crash, with the same rows in the same order.
    ``attempts`` counts starts, including this one. ``first_deferred_s`` is the time since the first deferral
    of this turn, 0.0 if there was none. ``is_new``: this claim created the turn, so it has no earlier work.
    """

    id: str
    session: SessionKey
    fence: int
    rows: tuple[InboxRow, ...]
    attempts: int
    deferrals: int
    first_deferred_s: float = 0.0
    is_new: bool = False

    @property
    def head(self) -> InboxRow:
        """The oldest message of the turn."""
        return self.rows[0]

    @property
    def place(self) -> SessionKey:
        """Return the session where its messages were written and its answer goes."""
        return self.rows[-1].message.session

    @property
    def channel(self) -> str:
        """The channel by which its messages came."""
        return self.rows[-1].message.channel


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease: the exclusive right of one process, with the remaining seconds by the database's clock."""

    name: str
    holder: str
    fence: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """
    A machine with a daemon: ``active`` has the lease, ``lives`` was seen in time.

    ``since_s`` is its process's age, ``seen_s`` the age of the last sign.
    """

    holder: str
    version: str
    active: bool
    lives: bool
    since_s: float
    seen_s: float


@dataclass(frozen=True, slots=True)
class Suspect:
    """A turn or an outbox row that was in flight when the process died, and is still open."""

    session: SessionKey
    record: CrashRecord
    turn: str | None = None
    outbox_id: int | None = None


@dataclass(frozen=True, slots=True)
class NewOutbound:
    """
    A message to be sent. It belongs to the inbox row of the answered turn or, without a turn, to nothing.
    ``context`` is that of the answered message; it is filled in if it is empty and the session is the turn's.
    ``hold``: the message is a draft, not sent before a person approves it. ``remembered``: see
    `OutboundMessage.remembered`. Answers do not need it, because their turn has its own history lines.
    ``rings_for``: see `OutboundMessage.rings_for`.
    """

    channel: str
    account: str
    session: SessionKey
    text: str
    kind: OutboundKind = OutboundKind.REPLY
    context: MessageContext = field(default_factory=MessageContext)
    attachments: tuple[Attachment, ...] = ()
    hold: bool = False
    remembered: bool = False
    rings_for: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One outgoing message. ``message.id`` is its idempotency key, fixed when the row is created."""

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
    """A committed history line that may not be in its file yet. ``id`` orders the lines."""

    id: int
    session: SessionKey
    message: Message


BACKGROUND_COMMAND = "background command"
"""`Receipt.tool` of a background command; the call that ordered it has a receipt of its own."""


class ReceiptOutcome(StrEnum):
    """The known outcome of an effect."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """The tool reports that the effect did not happen, or failed in part."""
    UNKNOWN = "unknown"
    """The call was interrupted and nobody has repeated it."""


@dataclass(frozen=True, slots=True)
class EffectReceipt:
    """
    A record of one effect of a tool.

    Args:
        asked_by: The sender of the answered message.
        origins: The shown sources in readable form; "": the owner only.
        approved_by: Who approved the call; "": the policy.
        told: The beginning of the result.
        undo: How a person undoes it.
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

    def without_words(self) -> EffectReceipt:
        """The same without what its person wanted and got."""
        return replace(self, arguments={}, origins="", told="")


@dataclass(frozen=True, slots=True)
class Step:
    """
    One step of a turn. ``kind`` is ``model``, ``tool`` or `APPROVAL`; ``result`` is None while the step has
    only started.
    """

    number: int
    kind: str
    digest: str
    request: Mapping[str, Any]
    result: Mapping[str, Any] | None
    receipt: EffectReceipt | None = None
    """The receipt of a tool call that is about to have an effect; it outlives the steps of the turn."""


@dataclass(frozen=True, slots=True)
class Completion:
    """
    Everything that is committed together when a turn is answered.

    ``others`` are lines for the histories of other sessions (an alert, in the conversation where it is read),
    ``entry`` is a line of the run ledger, ``collected`` are alerts that wait for the digest.
    """

    outbound: Sequence[NewOutbound] = ()
    history: Sequence[Message] = ()
    usage: Usage = field(default_factory=Usage)
    purpose: Purpose = Purpose.CHAT
    others: Sequence[OtherHistory] = ()
    entry: LedgerEntry | None = None
    collected: Sequence[CollectedAlert] = ()
    spent: Usage = field(default_factory=Usage)
    """All that the turn has cost since its last start; ``usage`` is the part that is not recorded yet."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Tokens of one day (``YYYY-MM-DD``, in the time zone of the store), session, purpose and model."""

    day: str
    session: str
    purpose: str
    model: str
    usage: Usage


class JobKind(StrEnum):
    """The action of a job that is due."""

    REMIND = "remind"
    """The job sends its text as it is, without a model."""
    ASK = "ask"
    """The job gives its text to the model and sends the answer."""


class JobState(StrEnum):
    """The state of a job: it will run again, is paused, or has ended."""

    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"
    """A one-time job that has run."""


@dataclass(frozen=True, slots=True)
class Job:
    """
    A scheduled job.

    Args:
        timing: In the format of ``gateway.proactive.jobs.triggers``.
    session, account: The conversation of its answers, and the bot's address there.
        person: Who requested it; it stops running when they are no longer allowed.
        context: The channel's context of the request, for the answer.
    next_at, last_at: Scheduled instants, or None.
        revision: Grows with every change by a person.
        note: Why it did not run the last time, or "".
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
    context: MessageContext = field(default_factory=MessageContext)
    state: JobState = JobState.ACTIVE
    next_at: datetime | None = None
    last_at: datetime | None = None
    revision: int = 1
    note: str = ""


class RunOutcome(StrEnum):
    """The outcome of a tick or a job."""

    SKIPPED = "skipped"
    SILENT = "silent"
    DELIVERED = "delivered"
    COLLECTED = "collected"
    """The result waits for the digest."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """
    A line of the run ledger, identified by ``name`` (heartbeat channel or ``job:ID``) and ``instant``.

    ``said`` is a fingerprint of the text, to recognise repetitions. A SKIPPED line stands for ``ticks``
    consecutive ticks up to ``until``.
    """

    name: str
    instant: datetime
    outcome: RunOutcome
    reason: str = ""
    tokens: int = 0
    calls: int = 0
    took_s: float = 0.0
    said: str = ""
    at: datetime | None = None
    until: datetime | None = None
    ticks: int = 1


@dataclass(frozen=True, slots=True)
class CollectedAlert:
    """An alert that waits for the digest to ``person`` on ``channel``; ``id`` is 0 before it is stored."""

    channel: str
    person: str
    text: str
    at: datetime
    id: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """
    A question about tool calls, or of a server during one, whose turn has not ended.

    Args:
        asked: The addresses of those who may decide, besides the owner.
        tool: The tool, or several separated by commas.
        until: The deadline of an approval.
        verdict: The decision or None.
        people: The senders whose messages the turn answers.
        places: The conversations in which it was asked.
        turn: The waiting turn.
        further: The turn has asked before.
        again: What the calls do has changed since a yes to them.
        offer, origins: The possible grant, and the named sources.
        proof: The strength of the senders' proof; see `proof_level`.
        form: A server's form, or None.
        calls: All calls that the answer decides, each with what its tool shows of it; none of a server's.
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
    further: bool = False
    again: bool = False
    offer: Scope | None = None
    origins: Origins = ()
    form: Form | None = None
    proof: int = 0
    calls: tuple[tuple[ToolCall, str], ...] = ()

    @classmethod
    def read(
        cls, request: Mapping[str, Any], turn: str, session: SessionKey, verdict: Mapping[str, Any] | None
    ) -> Question:
        """Read the step that asks. Raises KeyError, TypeError or ValueError if it is damaged."""
        decided, form = (request, *request.get("also", ())), request.get("form")
        calls = [] if form else [(each["call"], str(each.get("review") or "")) for each in decided]
        return cls(
            name=str(request["name"]),
            session=session,
            asked=tuple(map(str, request["asked"])),
            tool=", ".join(dict.fromkeys(str(each["call"]["name"]) for each in decided)),
            until=datetime.fromisoformat(request["until"]),
            verdict=verdict,
            turn=turn,
            at=datetime.fromisoformat(request["at"]) if "at" in request else None,
            offer=_scope_or_none(request.get("offer")),
            form=form_of(form) if form else None,
            origins=from_json(request.get("origins")),
            proof=int(request.get("proof", 0)),
            further=bool(request.get("further")),
            again=bool(request.get("again")),
            calls=tuple((ToolCall.model_validate({"id": "", **call}), review) for call, review in calls),
            people=tuple(map(str, request.get("people", request["asked"]))),
            places=tuple(SessionKey.parse(str(each)) for each in request.get("places", ())),
        )


def _scope_or_none(offer: object) -> Scope | None:
    match offer:
        case {"kind": str(kind), "tool": str(tool), "what": str(what)} if kind in set(GrantKind):
            return Scope(GrantKind(kind), tool, what)
    return None


class RunningTurn(NamedTuple):
    """A turn at work: since when, and the tool that its step ``number`` uses ("": the model)."""

    session: SessionKey
    since: datetime
    messages: int
    number: int
    tool: str


class QuestionDecision(NamedTuple):
    """The decision on a question, the conversation of its turn, and the tool in question."""

    session: SessionKey
    verdict: str
    tool: str


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Usage summed over one group (``name`` "" for an unknown model); ``priced``: completely."""

    name: str
    usage: Usage
    priced: bool


@dataclass(frozen=True, slots=True)
class TurnCost:
    """The cost of one turn: ``number`` is that of its last message, ``session`` "" if that is not kept."""

    number: int
    session: str
    accepted_at: datetime | None
    usage: Usage
