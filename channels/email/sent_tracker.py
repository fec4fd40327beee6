"""
Tracks the mails that were sent, and those whose sending is uncertain: in memory, and bounded. Pure. An answer
is *in doubt* from the moment at which the server may have taken it until somebody knows. It is known by its
outbox row once we have been told, and by its Message-ID once a copy of it came back. All of this only saves
looks into the mailbox, so a restart may forget it. `SentMails` decides which bounces are believed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog

from agent_core.bounded import Bounded
from channels.email.imap.housekeeping import FileCopy
from channels.email.parse.dsn import BounceReport, DeliveryStatus
from channels.email.parse.mail_addresses import without_tag

MAX_REMEMBERED = 2_000


class SentTracker:
    """Remembers the mails that were sent, on a ``monotonic`` clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._delivered: Bounded[str, None] = Bounded(MAX_REMEMBERED)
        self._copies: Bounded[str, None] = Bounded(MAX_REMEMBERED)
        self._doubts: Bounded[str, float] = Bounded(MAX_REMEMBERED)
        self._ids: Bounded[str, None] = Bounded(MAX_REMEMBERED)
        self._first_copies: Bounded[str, FileCopy] = Bounded(MAX_REMEMBERED)
        self._unclaimed: Bounded[str, FileCopy] = Bounded(200)

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


_REPORTERS = ("mailer-daemon", "postmaster")
_log = structlog.get_logger(__name__)


class SentMails:
    """
    Remembers the recipients of our mails, and which of them are believed undelivered.

    A report needs evidence, since anybody can write one: it names a mail that we sent and its recipient in
    the machine-readable part (once per mail), and its author knows the mail from the only recipient, or is
    proven to be the mail server of that domain or ours. A failed check by our provider disqualifies it.
    """

    def __init__(self, name: str, account: str) -> None:
        self._name = name
        self._own_domain = account.rpartition("@")[2]
        self._sent_to: OrderedDict[str, tuple[str, bool]] = OrderedDict()
        """By Message-ID: to whom a mail went, and whether to nobody else."""
        self._came_back: set[str] = set()

    def note_sent_mail(self, message_id: str, recipient: str, *, alone: bool) -> None:
        """Note a sent mail; ``alone``: it went to nobody else."""
        self._sent_to[message_id] = (recipient, alone)
        while len(self._sent_to) > 2_000:
            self._came_back.discard(self._sent_to.popitem(last=False)[0])

    def recipient_of(self, message_ids: Sequence[str]) -> str:
        """The recipient of the first of these mails that is known here; empty if none is."""
        known = (self._sent_to[each][0] for each in message_ids if each in self._sent_to)
        return next(known, "")

    def accept_report(self, report: BounceReport, outside: bool, verified: str) -> frozenset[str]:  # noqa: FBT001 - a callback
        """Return the mails proven undelivered; ``outside``: our provider examined the ``verified`` sender."""
        evident: set[str] = set()
        if report.fate is not DeliveryStatus.FAILED:
            return frozenset()
        name, _, domain = verified.rpartition("@")
        for message_id in report.message_ids:
            whom, alone = self._sent_to.get(message_id, ("", False))
            if not whom or without_tag(report.recipient.lower()) != without_tag(whom):
                continue
            theirs = name in _REPORTERS and domain in (whom.rpartition("@")[2], self._own_domain)
            if not theirs and (outside or verified or not alone):
                _log.info("mail.bounce_unverified", channel=self._name)
                continue
            evident.add(message_id)
            if message_id not in self._came_back:
                self._came_back.add(message_id)
                _log.warning("mail.bounced", channel=self._name)
        return frozenset(evident)
