"""The position up to which a mailbox has been read, which must be right even after a crash."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from channels.base import Inbox
from channels.email.imap.mailbox import MailInfo


@dataclass(frozen=True, slots=True)
class Position:
    """
    The position up to which the mailbox has been read.

    ``floor`` is the newest arrival at the first start: nothing older is answered. ``again_to`` is the highest
    UID when the server renumbered.
    """

    uidvalidity: int
    uid: int
    floor: datetime | None = None
    again_to: int = 0

    @classmethod
    async def load(cls, inbox: Inbox) -> Self | None:
        """The position that was last committed; None at the very first start."""
        uidvalidity, uid = await inbox.position("uidvalidity"), await inbox.position("uid")
        if uidvalidity is None or uid is None:
            return None
        floor = await inbox.position("floor")
        return cls(
            int(uidvalidity),
            int(uid),
            datetime.fromisoformat(floor) if floor else None,
            int(await inbox.position("again_to") or 0),
        )

    def as_values(self) -> dict[str, str]:
        """The position as the inbox stores it."""
        return {
            "uidvalidity": str(self.uidvalidity),
            "uid": str(self.uid),
            "floor": self.floor.isoformat() if self.floor else "",
            "again_to": str(self.again_to),
        }

    def is_older(self, info: MailInfo, *, now: datetime) -> bool:
        """Return True if a mail existed before the first start."""
        if self.floor is None or info.received_at is None:
            return False
        if info.uid <= self.again_to:
            return info.received_at <= self.floor
        if self.floor > now:
            # A mail from the future (imports bring some), or a clock that was wrong, would make us deaf.
            return False
        # Mails keep their arrival time when they are moved here, so this also holds for old ones put back.
        return info.received_at < self.floor
