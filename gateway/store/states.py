"""
The two state machines of the durable queue, as tables; ``sql/moves.py`` derives the SQL. Pure. An inbox row
is ``ready``, ``running`` under a claim, ``answered`` when its answer is committed and ``settled`` when
servers accepted all parts; ``dead`` failed permanently (with an apology), ``ignored`` is never answered. An
outbox row is ``pending``, ``sending`` before the first byte, ``uncertain`` from just before the point of no
return, and ``sent``; only ``uncertain`` needs the channel's rule or a person (``unknown``). ``quarantined``
messages and ``held`` drafts wait for a person.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

BUDGET = "budget"
"""The wait for another day, or for a changed budget."""
MODEL = "model"
"""The wait for a model that answers again."""
PLACE = "place"
"""The wait for the later place that its channel assigned."""
QUARANTINE_S = 30 * 86_400.0
"""How long a quarantined message waits for a person."""
UNINVITED = "sender_not_allowed"
"""The reason for which a message waits whose proven sender nobody has let in."""
UNINVITED_S = 14 * 86_400.0
"""How long it waits."""
DROPPED_REASONS = ("dropped", "left", "forgotten")
"""The errors of dead sends that a person has given up, besides those that begin with ``rejected``."""
IGNORED_S = 7 * 86_400.0
"""The longest time for which an ignored message can be listed."""


class InboxState(StrEnum):
    """The state of an accepted message."""

    READY = "ready"
    RUNNING = "running"
    ANSWERED = "answered"
    SETTLED = "settled"
    DEAD = "dead"
    IGNORED = "ignored"
    QUARANTINED = "quarantined"


class OutboxState(StrEnum):
    """The state of an outgoing message."""

    PENDING = "pending"
    SENDING = "sending"
    UNCERTAIN = "uncertain"
    SENT = "sent"
    DEAD = "dead"
    UNKNOWN = "unknown"
    HELD = "held"


class IllegalMove(ValueError):
    """The row's state does not allow this move. Nothing was changed."""


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
The moves of a restore and of the erasure of a person in a database that no gateway has open: they park open
work, and messages of others whose answer was erased become ready again or settled.
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


def link_wait(channel: str) -> str:
    """Return the wait for the link of this channel."""
    return f"link:{channel}"


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """
    The crash record of a turn or an outbox row.

    ``deaths`` counts those while in flight, ``alone`` those of them with nothing else at its newest step.
    """

    deaths: int = 0
    alone: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """
    Counts by state, and ages in seconds of the oldest unanswered message and unsent answer, or None.

    Messages that wait for a person, a place or the budget, and background jobs, have no age.
    ``oldest_question_s`` is that of the oldest item for a person: call, draft or quarantine.
    """

    inbox: Mapping[str, int]
    outbox: Mapping[str, int]
    oldest_unanswered_s: float | None
    oldest_unsent_s: float | None
    journal_lines: int
    waiting_for_yes: int = 0
    oldest_question_s: float | None = None
    background_jobs: int = 0

    def as_work(self) -> dict[str, Any]:
        """The ``work`` section of a status report, as JSON values."""
        return {
            "inbox": dict(self.inbox),
            "outbox": dict(self.outbox),
            "oldest_unanswered_s": self.oldest_unanswered_s,
            "oldest_unsent_s": self.oldest_unsent_s,
            "history_lines_to_file": self.journal_lines,
            "waiting_for_yes": self.waiting_for_yes,
            "oldest_question_s": self.oldest_question_s,
            "background_jobs": self.background_jobs,
        }
