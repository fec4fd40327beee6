"""
Mails that have been read and wait for their sender to be verified, beside the receiving loop.

A domain chooses how long its DNS takes to answer, so a mail that waits for it keeps only later mails of the
same sender waiting: all others are taken in before it. A mail whose files are being kept in a shared storage
waits here in the same way. What waits is bounded, for each domain and in all. It is in memory only, and the
position in the mailbox stays before it, so after a crash it is read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from agent_core.messages import InboundMessage
from channels.email.imap.mailbox import MailInfo
from channels.email.intake import Arrival
from channels.email.trust.dkim_alignment import Verification

__all__ = ["VERIFICATIONS_AT_ONCE", "ReadMail", "VerificationQueue"]

VERIFICATIONS_AT_ONCE = 8
"""For mails of one domain."""
MOST_AT_ONCE = 32
MOST_OF_DOMAIN = 100
MOST_BYTES_OF_DOMAIN = 16_000_000
MOST_BYTES = 64_000_000
TOO_MUCH = "too many mails of its domain wait for the answer of DNS"
Verify = Callable[[bytes, str], Awaitable[Verification]]
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ReadMail:
    """
    A mail as it was read, whose it claims to be, and the proof that was found; None: it is looked for.

    ``complete`` is the message with its files, once those are kept.
    """

    info: MailInfo
    raw: bytes
    arrival: Arrival | None
    senders: frozenset[str] = frozenset()
    verification: Verification | None = Verification()  # noqa: RUF009 - a frozen value
    complete: InboundMessage | None = None


class VerificationQueue:
    """
    Verifies senders, and gives mails out in the order of their UIDs, for each sender.

    Args:
        verify: Looks for a proof of a sender, given the raw mail and his address.
        news: Told when a proof was found, or none.
    """

    def __init__(
        self, verify: Verify | None, *, start: Callable[..., Any], news: Callable[[], None] = lambda: None
    ) -> None:
        self._verify = verify
        self._start = start
        self._tell = news
        self._mails: dict[int, ReadMail] = {}
        self._asking: dict[str, tuple[int, int]] = {}
        """How many mails of a domain wait, and their size."""
        self._rooms: dict[str, anyio.CapacityLimiter] = {}
        self._room = anyio.CapacityLimiter(MOST_AT_ONCE)
        self._news = anyio.Event()

    def add(self, mail: ReadMail, question: str | None) -> None:
        """Put one in, with the sender who is to be proven; UIDs must grow."""
        self._mails[mail.info.uid] = mail
        if question is None or self._verify is None:
            return
        domain = question.rpartition("@")[2]
        mails, size = self._asking.get(domain, (0, 0))
        if mails >= MOST_OF_DOMAIN or (mails and size + len(mail.raw) > MOST_BYTES_OF_DOMAIN):
            mail.verification = Verification(lacks=TOO_MUCH)
            return
        mail.verification = None
        self._asking[domain] = mails + 1, size + len(mail.raw)
        self._start(self._find, self._verify, mail, question, domain)

    def take(self) -> list[ReadMail]:
        """What can be taken in now; it is gone from here."""
        ready: list[ReadMail] = []
        behind: set[str] = set()
        for mail in self._mails.values():
            if mail.verification is None or not mail.senders.isdisjoint(behind):
                behind |= mail.senders
            else:
                ready.append(mail)
        for mail in ready:
            del self._mails[mail.info.uid]
        return ready

    def put_back(self, mail: ReadMail, until: Callable[[], Awaitable[None]] | None = None) -> None:
        """Take one back. It is given out again in its place, after ``until`` has come back."""
        self._mails = dict(sorted((self._mails | {mail.info.uid: mail}).items()))
        if until is not None:
            verification, mail.verification = mail.verification, None
            self._start(self._later, mail, verification, until)

    @property
    def first(self) -> int | None:
        """The lowest UID that waits."""
        return next(iter(self._mails), None)

    @property
    def full(self) -> bool:
        """Whether so much waits that nothing more may be read."""
        return sum(len(mail.raw) for mail in self._mails.values()) > MOST_BYTES

    async def settled(self, uid: int) -> None:
        """Wait until no proof is looked for, of mails from this UID on."""
        while any(mail.verification is None and mail.info.uid >= uid for mail in self._mails.values()):
            await self.changed()

    async def changed(self) -> None:
        """Wait until the next proof was found, or none."""
        await self._news.wait()

    async def _later(
        self, mail: ReadMail, verification: Verification | None, until: Callable[[], Awaitable[None]]
    ) -> None:
        await until()
        mail.verification = verification
        self._settled()

    async def _find(self, verify: Verify, mail: ReadMail, sender: str, domain: str) -> None:
        room = self._rooms.setdefault(domain, anyio.CapacityLimiter(VERIFICATIONS_AT_ONCE))
        try:
            async with room, self._room:
                mail.verification = await verify(mail.raw, sender)
        except Exception as exc:  # noqa: BLE001 - whatever upsets it is one mail, and must not be the last
            _log.error("mail.verification_failed", uid=mail.info.uid, error=type(exc).__name__)
            mail.verification = Verification(lacks="it cannot be examined")
        mails, size = self._asking.pop(domain)
        if mails > 1:
            self._asking[domain] = mails - 1, size - len(mail.raw)
        else:
            del self._rooms[domain]
        self._settled()

    def _settled(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()
        self._tell()
