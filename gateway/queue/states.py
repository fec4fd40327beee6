"""
The two state machines of the durable queue, as tables. The SQL of each move reads its allowed start states
from them (``sql/moves.py``). Pure: nothing here reads a clock or does I/O.

An inbox row is ``ready`` when accepted, ``running`` under a claim, ``answered`` when its answer is
committed, and ``settled`` when a server has accepted every part of the answer. A ``dead`` row failed for good
(an apology is sent); an ``ignored`` row is never answered.

An outbox row is ``pending``, then ``sending`` before the first byte goes to a server, ``uncertain`` from just
before the point of no return, and finally ``sent``. A crash in ``sending`` is safe to repeat; only
``uncertain`` needs the channel's rule (same key, probe, or a person: ``unknown``).

Two states wait for a person only: a ``quarantined`` message until somebody releases it, a ``held`` draft
until somebody approves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

ACCOUNT = "account"
"""What waits for the daemon that has the account: a worker has given it back."""
BUDGET = "budget"
"""What waits for another day, or for another budget."""
PLACE = "place"
"""What waits for the later place that its channel has given it."""
QUARANTINE_S = 30 * 86_400.0
"""How long a quarantined message waits for a person."""
IGNORED_S = 7 * 86_400.0
"""How long an ignored message can be looked at, at most."""


class InboxState(StrEnum):
    """Where an accepted message is."""

    READY = "ready"
    RUNNING = "running"
    ANSWERED = "answered"
    SETTLED = "settled"
    DEAD = "dead"
    IGNORED = "ignored"
    QUARANTINED = "quarantined"


class OutboxState(StrEnum):
    """Where a message on its way out is."""

    PENDING = "pending"
    SENDING = "sending"
    UNCERTAIN = "uncertain"
    SENT = "sent"
    DEAD = "dead"
    UNKNOWN = "unknown"
    HELD = "held"


class IllegalMove(ValueError):
    """Its state does not allow that. Nothing was changed."""


_I, _O = InboxState, OutboxState

INBOX_MOVES: dict[InboxState, frozenset[InboxState]] = {
    _I.READY: frozenset({_I.RUNNING, _I.IGNORED}),
    _I.RUNNING: frozenset({_I.READY, _I.ANSWERED, _I.SETTLED, _I.DEAD, _I.IGNORED}),
    _I.ANSWERED: frozenset({_I.SETTLED}),
    _I.SETTLED: frozenset(),
    _I.DEAD: frozenset({_I.READY, _I.IGNORED}),
    _I.IGNORED: frozenset(),
    _I.QUARANTINED: frozenset({_I.READY, _I.IGNORED}),
}

OFFLINE_INBOX_MOVES: dict[InboxState, frozenset[InboxState]] = {
    _I.READY: frozenset({_I.QUARANTINED, _I.DEAD, _I.IGNORED}),
    _I.RUNNING: frozenset({_I.QUARANTINED, _I.DEAD, _I.IGNORED}),
    _I.ANSWERED: frozenset({_I.READY, _I.SETTLED}),
}
"""
What a restore and the erasure of a person do to a database that no gateway has open: they park what was open,
and messages of others whose answer was erased are ready again or settled.
"""

OUTBOX_MOVES: dict[OutboxState, frozenset[OutboxState]] = {
    _O.PENDING: frozenset({_O.SENDING, _O.DEAD}),
    _O.SENDING: frozenset({_O.PENDING, _O.UNCERTAIN, _O.SENT, _O.DEAD}),
    _O.UNCERTAIN: frozenset({_O.SENDING, _O.UNCERTAIN, _O.PENDING, _O.SENT, _O.DEAD, _O.UNKNOWN}),
    _O.SENT: frozenset(),
    _O.DEAD: frozenset({_O.PENDING}),
    _O.UNKNOWN: frozenset({_O.PENDING, _O.SENT, _O.DEAD}),
    _O.HELD: frozenset({_O.PENDING, _O.DEAD}),
}


def link_of(channel: str) -> str:
    """What waits for the link of this channel."""
    return f"link:{channel}"


@dataclass(frozen=True, slots=True)
class Record:
    """
    What deaths say about a turn or an outbox row.

    ``deaths`` at which it was in flight; ``alone``: at which nothing else was; ``in_a_row``: the newest
    deaths of the process, as far as they were all of that kind, and at the same step. ``others``: deaths
    since its first at which something else was alone in flight that came through later, and so does not kill.
    """

    deaths: int = 0
    alone: int = 0
    in_a_row: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """
    Counts by state, and the age in seconds of the oldest message that is not answered and of the oldest
    answer that is not sent (None: there is none). Conversations in which a tool waits for a person's yes are
    counted by themselves: what waits there waits for that person, and has no age. Neither has what waits
    for its place or for the budget, because its sender knows until when, nor a background job.
    """

    inbox: Mapping[str, int]
    outbox: Mapping[str, int]
    oldest_unanswered_s: float | None
    oldest_unsent_s: float | None
    journal_lines: int
    waiting_for_yes: int = 0
    background_jobs: int = 0

    def as_work(self) -> dict[str, Any]:
        """The part ``work`` of a status report, as JSON can hold it."""
        return {
            "inbox": dict(self.inbox),
            "outbox": dict(self.outbox),
            "oldest_unanswered_s": self.oldest_unanswered_s,
            "oldest_unsent_s": self.oldest_unsent_s,
            "history_lines_to_file": self.journal_lines,
            "waiting_for_yes": self.waiting_for_yes,
            "background_jobs": self.background_jobs,
        }
