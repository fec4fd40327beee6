"""
The queue of mails that wait for the verification of their sender, beside the receiving loop. A domain chooses
how slow its DNS is, so a waiting mail delays only later ones of its sender. The queue is bounded per domain
and in all, and in memory only: the mailbox position stays before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import Any

import anyio
import structlog

from channels.email.imap.mailbox import MailInfo
from channels.email.receive.mail_intake import Arrival
from channels.email.trust.dkim_alignment import Verification

VERIFICATIONS_AT_ONCE = 8
"""For mails of one domain."""
MAX_OF_DOMAIN = 100
MAX_BYTES = 64_000_000
MAX_MAILS = 2_000
TOO_MUCH = "too many mails of its domain are waiting for DNS"
Verify = Callable[[bytes, str], Awaitable[Verification]]
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ReadMail:
    """A parsed mail, its claimed sender, and the proof; None: still searched."""

    info: MailInfo
    raw: bytes
    arrival: Arrival
    senders: frozenset[str] = frozenset()
    verification: Verification | None = Verification()  # noqa: RUF009 - a frozen value


class VerificationQueue:
    """
    Verifies senders and returns each sender's mails in UID order.

    ``verify`` searches the proof; ``news`` is called when that ends.
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
        self._room = anyio.CapacityLimiter(32)
        self._news = anyio.Event()

    def add(self, mail: ReadMail, question: str | None) -> None:
        """Add a mail and the sender to prove; UIDs must grow."""
        self._mails[mail.info.uid] = mail
        if question is None or self._verify is None:
            return
        domain = question.rpartition("@")[2]
        mails, size = self._asking.get(domain, (0, 0))
        if mails >= MAX_OF_DOMAIN or (mails and size + len(mail.raw) > 16_000_000):
            mail.verification = Verification(lacks=TOO_MUCH)
            return
        mail.verification = None
        self._asking[domain] = mails + 1, size + len(mail.raw)
        self._start(self._find, self._verify, mail, question, domain)

    def pop_ready(self) -> list[ReadMail]:
        """Remove and return the mails that can be accepted now."""
        ready: list[ReadMail] = []
        behind: set[str] = set()
        for mail in self._in_order():
            if mail.verification is None or not mail.senders.isdisjoint(behind):
                behind |= mail.senders
            else:
                ready.append(mail)
        for mail in ready:
            del self._mails[mail.info.uid]
        if ready:
            self._notify()
        return ready

    def __contains__(self, uid: object) -> bool:
        return uid in self._mails

    def lowest_waiting(self, uids: Container[int]) -> int | None:
        """The lowest waiting UID that is not one of these."""
        return min((uid for uid in self._mails if uid not in uids), default=None)

    @property
    def full(self) -> bool:
        """Return True if so many mails wait that no more may be read."""
        size = sum(len(mail.raw) for mail in self._mails.values())
        return size > MAX_BYTES or len(self._mails) > 2 * MAX_MAILS

    async def wait_for_proofs(self, uid: int) -> None:
        """Wait until no proof is being looked for, for mails from this UID on."""
        while any(mail.verification is None and mail.info.uid >= uid for mail in self._mails.values()):
            await self.wait_for_change()

    async def wait_for_change(self) -> None:
        """Wait until the next search for a proof has ended, or a mail was taken."""
        await self._news.wait()

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
        self._notify()
        self._tell()

    def _notify(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    def _in_order(self) -> list[ReadMail]:
        return [self._mails[uid] for uid in sorted(self._mails)]
