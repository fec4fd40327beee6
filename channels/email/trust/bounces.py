"""
Decides which bounces are believed: reports that a mail of ours did not arrive. A report needs evidence, since
anybody can write one: it names a mail that we sent and its recipient in the machine-readable part (once per
mail), and its author knows the mail from the only recipient, or is proven to be the mail server of that
domain or ours. A failed check by our provider disqualifies it. ``parsing/dsn.py`` reads reports.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import structlog

from channels.email.parse.dsn import BounceReport, DeliveryStatus
from channels.email.parse.mail_addresses import without_tag

MAX_SENT_IDS = 2_000
_REPORTERS = ("mailer-daemon", "postmaster")
_log = structlog.get_logger(__name__)


class SentMails:
    """Remembers the recipients of our mails, and which of them are believed undelivered."""

    def __init__(self, name: str, account: str) -> None:
        self._name = name
        self._own_domain = account.rpartition("@")[2]
        self._sent_to: OrderedDict[str, tuple[str, bool]] = OrderedDict()
        """By Message-ID: to whom a mail went, and whether to nobody else."""
        self._came_back: set[str] = set()

    def note_sent_mail(self, message_id: str, recipient: str, *, alone: bool) -> None:
        """Note a sent mail; ``alone``: it went to nobody else."""
        self._sent_to[message_id] = (recipient, alone)
        while len(self._sent_to) > MAX_SENT_IDS:
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
