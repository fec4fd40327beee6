"""
What goes into the durable queue and comes out of it: frozen values, one for each kind of row. Pure.

`ports.py` says what is done with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agent_core.messages import Attachment, InboundMessage, OutboundKind, OutboundMessage, SessionKey
from agent_core.models import Message, Purpose, Usage
from gateway.queue.job_port import Collected, Entry, OtherHistory
from gateway.queue.sqlite.crash_records import Record
from gateway.queue.sqlite.stats import StoreStats
from gateway.queue.states import InboxState, OutboxState

__all__ = [
    "Accepted",
    "Completion",
    "InboxRow",
    "JournalLine",
    "NewOutbound",
    "OutboxRow",
    "Pending",
    "Step",
    "Stopped",
    "StoreStats",
    "Suspect",
    "Turn",
    "UsageRow",
]


@dataclass(frozen=True, slots=True)
class Pending:
    """
    A message to be accepted.

    ``ignore`` holds the reason (a short constant such as ``sender_not_allowed``) when it shall only be
    remembered as seen: its text and context are not stored then. ``quarantine`` holds one when it shall be
    kept whole and wait for a person. ``alone``: it is answered by itself, never together with others (a
    command).
    """

    message: InboundMessage
    ignore: str | None = None
    quarantine: str | None = None
    alone: bool = False


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
        touched: The sessions in which something was taken away: their head may be another one now.
    """

    def __init__(
        self,
        rows: Iterable[InboxRow] = (),
        stopped: Iterable[Stopped] = (),
        touched: Iterable[SessionKey] = (),
    ) -> None:
        super().__init__(rows)
        self.stopped = tuple(stopped)
        self.touched = tuple(touched)


@dataclass(frozen=True, slots=True)
class Turn:
    """
    A claim on the head of a session.

    ``id`` stays the same when the turn is claimed again after a crash, with the same rows in the same
    order. ``attempts`` counts starts, this one included; ``first_deferred_s`` is how long ago the first
    deferral of this turn was, 0.0 if there was none.
    """

    id: str
    session: SessionKey
    fence: int
    rows: tuple[InboxRow, ...]
    attempts: int
    deferrals: int
    first_deferred_s: float = 0.0

    @property
    def head(self) -> InboxRow:
        """The oldest message of the turn."""
        return self.rows[0]


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


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a turn: ``kind`` is ``model`` or ``tool``, ``result`` None while it has only started."""

    number: int
    kind: str
    digest: str
    request: Mapping[str, Any]
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Completion:
    """
    Everything that becomes true together when a turn is answered.

    ``others`` are lines for the histories of other sessions (an alert, where it is read), ``entry`` a line of
    the run ledger, ``collected`` what waits for the digest.
    """

    outbound: Sequence[NewOutbound] = ()
    history: Sequence[Message] = ()
    usage: Usage = field(default_factory=Usage)
    purpose: Purpose = Purpose.CHAT
    others: Sequence[OtherHistory] = ()
    entry: Entry | None = None
    collected: Sequence[Collected] = ()


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Tokens of one day (``YYYY-MM-DD``, in the zone of the store), session, purpose and model."""

    day: str
    session: str
    purpose: str
    model: str
    usage: Usage
