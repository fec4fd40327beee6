"""
Fetches mails from an open mailbox, and keeps account of those that the server lists and does not hand out.
Servers fail for single mails in many ways: a NO (``[UNAVAILABLE]``, ``[SERVERBUG]``), an OK with nothing in
between, ``NIL`` or an empty text, or they close the connection. Such a mail is set aside in `WithheldMails`,
which is committed with the position, so the ones behind it go on, and it is tried again with growing pauses
over restarts. After `GIVE_UP_AFTER` it is given up, and the owner is told.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from agent_core.backoff import BackoffPolicy
from channels.base import ChannelUnavailable
from channels.email.imap.imap_protocol import ImapRefused
from channels.email.imap.imap_syntax import uid_set
from channels.email.imap.mailbox import Mailbox, MailInfo

MAX_MAIL_BYTES = 25_000_000
"""Of a larger mail only the header is fetched."""
BATCH_BYTES = 2_000_000
"""Reading so much takes a second at most; then it is looked whether the owner has written."""
GIVE_UP_AFTER = timedelta(days=1)
_GRACE = timedelta(hours=3)
"""Two tries at least: a process that died before the owner's alert was stored gives it once more."""
MAX_WITHHELD = 200
"""A server that hands out none of so many is down, and the link waits instead of the mails."""
_BREAKS = 2
"""The number of broken connections during the fetch of a mail after which it is set aside."""
_AGAIN = BackoffPolicy(first_s=10.0, cap_s=3600.0, jitter=0.2, floor_s=1.0)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wait:
    """Since when a mail is not handed out, how often it was tried, and when it is tried next."""

    since: datetime
    tries: int
    next_at: datetime


class WithheldMails:
    """The mails of one mailbox that are listed and not handed out, by UID. Pure."""

    def __init__(self, value: str | None = None) -> None:
        """``value`` is what `as_value` returned; anything else counts as nothing."""
        self._waits: dict[int, Wait] = {}
        try:
            for uid, (since, tries, next_at) in json.loads(value or "{}").items():
                at = datetime.fromtimestamp(next_at, UTC)
                self._waits[int(uid)] = Wait(datetime.fromtimestamp(since, UTC), int(tries), at)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            _log.error("mail.withheld_unreadable", error=type(error).__name__)

    def as_value(self) -> str:
        """All of it, to be stored with the position."""
        waits = {
            uid: (wait.since.timestamp(), wait.tries, wait.next_at.timestamp())
            for uid, wait in self._waits.items()
        }
        return json.dumps(waits)

    def __contains__(self, uid: object) -> bool:
        return uid in self._waits

    def tries(self, uid: int) -> int:
        """Return the number of times that a mail was tried again."""
        return self._waits[uid].tries if uid in self._waits else 0

    def add(self, uid: int, now: datetime) -> None:
        """Set a mail aside. Raises ChannelUnavailable if there are too many."""
        if uid in self._waits:
            return
        if len(self._waits) >= MAX_WITHHELD:
            raise ChannelUnavailable(f"the mail server lists {MAX_WITHHELD} mails and returns none of them")
        _log.warning("mail.not_handed_out", uid=uid)
        self._waits[uid] = Wait(now, 0, now + _pause(1))

    def discard(self, uid: int) -> None:
        """Note that the mail was taken in, given up, or is gone."""
        self._waits.pop(uid, None)

    def begin(self, now: datetime) -> list[int]:
        """The mails that are due; their next try is set before this one, whatever that may break."""
        due = [uid for uid, wait in self._waits.items() if _left(wait, now) <= timedelta(0)]
        for uid in due:
            wait = self._waits[uid]
            self._waits[uid] = Wait(min(wait.since, now), wait.tries + 1, now + _pause(wait.tries + 2))
        return due

    def is_over(self, uid: int, now: datetime) -> bool:
        """Return True if a mail has been tried for `GIVE_UP_AFTER`."""
        return uid in self._waits and now - self._waits[uid].since >= GIVE_UP_AFTER

    def drop_after_grace(self, uid: int, now: datetime) -> None:
        """Stop trying a given-up mail once the owner has been notified for certain."""
        if now - self._waits[uid].since >= GIVE_UP_AFTER + _GRACE:
            self.discard(uid)

    def next_s(self, now: datetime) -> float | None:
        """Seconds until the next one is due; None if there is none."""
        left = min((_left(wait, now) for wait in self._waits.values()), default=None)
        return None if left is None else max(left.total_seconds(), 0.0)


def _left(wait: Wait, now: datetime) -> timedelta:
    left = wait.next_at - now
    longest = timedelta(seconds=_AGAIN.cap_s)
    return left if left <= longest else timedelta(0)  # the clock was put back


def _pause(tries: int) -> timedelta:
    return timedelta(seconds=_AGAIN.delay(tries, random=random.random()))


class MailFetcher:
    """Fetches over one connection; ``broke`` counts broken connections by UID and outlives it."""

    def __init__(self, mailbox: Mailbox, broke: dict[int, int]) -> None:
        self._mailbox = mailbox
        self._broke = broke

    async def existing_uids(self, uids: Sequence[int]) -> list[int]:
        """Those of them that the server still has."""
        if not uids:
            return []
        return sorted(set(uids).intersection(await self._mailbox.search("UID", uid_set(uids))))

    async def infos(self, uids: Sequence[int]) -> list[MailInfo]:
        """Sizes and arrival times of those of which the server says them."""
        try:
            return await self._mailbox.describe(uids)
        except ChannelUnavailable as exc:
            if not isinstance(exc.__cause__, ImapRefused):
                raise
            if len(uids) == 1:
                return []
        # One of them is the trouble; the others must not suffer.
        return [info for uid in uids for info in await self.infos([uid])]

    async def raw_mails(self, batch: Sequence[MailInfo], *, again: bool = False) -> dict[int, bytes]:
        """Fetch the available mails, of large ones the header; ``again`` retries connection breakers."""
        if again:
            for info in batch:
                self._broke.pop(info.uid, None)
        whole = [info.uid for info in batch if info.size <= MAX_MAIL_BYTES]
        large = [info.uid for info in batch if info.size > MAX_MAIL_BYTES]
        found = await self.bodies(whole) | await self.bodies(large, header_only=True)
        return {
            info.uid: found[info.uid]
            for info in batch
            if found.get(info.uid) or (info.uid in found and not info.size)
        }

    async def bodies(self, uids: Sequence[int], *, header_only: bool = False) -> dict[int, bytes]:
        """Whole mails, or their headers; what the server does not hand out is missing."""
        uids = [uid for uid in uids if self._broke.get(uid, 0) < _BREAKS]
        if not uids:
            return {}
        if len(uids) == 1 or not any(uid in self._broke for uid in uids):
            try:
                return await self._mailbox.bodies(uids, header_only=header_only)
            except ChannelUnavailable as exc:
                if not isinstance(exc.__cause__, ImapRefused):
                    self._broke.update((uid, self._broke.get(uid, 0) + 1) for uid in uids)
                    raise
                if len(uids) == 1:
                    return {}
        # One of them is the trouble; the others must not suffer.
        found: dict[int, bytes] = {}
        for uid in uids:
            found.update(await self.bodies([uid], header_only=header_only))
            self._broke.pop(uid, None)
        return found


def batches_by_size(infos: Sequence[MailInfo], *, most: int = sys.maxsize) -> Iterator[list[MailInfo]]:
    """Yield batches whose bodies (at ``most`` bytes each) fit into memory; a large mail is alone."""
    batch: list[MailInfo] = []
    size = 0
    for info in infos:
        if batch and size + min(info.size, most) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(info)
        size += min(info.size, most)
    if batch:
        yield batch
