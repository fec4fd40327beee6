"""
Tracks the mails that were sent, and those whose sending is uncertain: in memory, and bounded. Pure. An answer
is *in doubt* from the moment at which the server may have taken it until somebody knows. It is known by its
outbox row once we have been told, and by its Message-ID once a copy of it came back. All of this only saves
looks into the mailbox, so a restart may forget it.
"""

from __future__ import annotations

from collections.abc import Callable

from agent_core.bounded import Bounded
from channels.email.imap.housekeeping import FileCopy

MAX_REMEMBERED = 2_000
MAX_UNCLAIMED = 200


class SentTracker:
    """Remembers the mails that were sent, on a ``monotonic`` clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._delivered: Bounded[str, None] = Bounded(MAX_REMEMBERED)
        self._copies: Bounded[str, None] = Bounded(MAX_REMEMBERED)
        self._doubts: Bounded[str, float] = Bounded(MAX_REMEMBERED)
        self._ids: Bounded[str, None] = Bounded(MAX_REMEMBERED)
        self._first_copies: Bounded[str, FileCopy] = Bounded(MAX_REMEMBERED)
        self._unclaimed: Bounded[str, FileCopy] = Bounded(MAX_UNCLAIMED)

    def is_delivered(self, row: str) -> bool:
        """Return True if the server accepted the mail of an outbox row."""
        return row in self._delivered

    def note_delivery(self, row: str, message_id: str) -> FileCopy | None:
        """The server accepted it. Returns the copy that arrived before."""
        self._doubts.pop(row, None)
        self._delivered[row] = None
        self._ids[message_id] = None
        return self._unclaimed.pop(message_id, None)

    def was_sent(self, message_id: str) -> bool:
        """Return True if the server accepted a mail with this id."""
        return message_id in self._ids

    def is_first_copy(self, message_id: str, copy: FileCopy) -> bool:
        """Return True if no other copy with this id came before; remembers the first."""
        first = self._first_copies.get(message_id, copy)
        self._first_copies[message_id] = first
        return first == copy

    def note_unknown_copy(self, message_id: str, copy: FileCopy) -> None:
        """Keep the first copy of an unknown id, of the newest ids only: anybody can send one."""
        if message_id not in self._unclaimed:
            self._unclaimed[message_id] = copy

    def note_copy(self, message_id: str) -> None:
        """Note that a copy of our mail arrived, or somebody named what only its recipient can know."""
        self._copies[message_id] = None

    def has_copy(self, message_id: str) -> bool:
        """Return True if a copy of this mail has arrived."""
        return message_id in self._copies

    def is_uncertain(self, row: str) -> bool:
        """Return True if the mail may have been sent without confirmation."""
        return row in self._doubts

    def mark_uncertain(self, row: str) -> None:
        """Note that the mail may have been sent; the wait for a copy starts again."""
        self._doubts[row] = self._monotonic()

    def uncertain_for_s(self, row: str) -> float:
        """Return the seconds for which it has been uncertain; if it was not, it becomes so now."""
        if row not in self._doubts:
            self.mark_uncertain(row)
        return self._monotonic() - self._doubts[row]

    def note_rejection(self, row: str) -> None:
        """Note that a row was certainly not sent."""
        self._doubts.pop(row, None)
