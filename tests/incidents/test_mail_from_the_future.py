"""
One mail with an arrival time of next year, brought in by an import, lay in the mailbox at the first start.
Every mail after it counted as older than the first start, and the bot was deaf without a word.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from channels.email.imap.mailbox import MailInfo
from channels.email.mail_position import Position

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def older(floor: datetime | None, received_at: datetime, *, uid: int = 10, again_to: int = 0) -> bool:
    position = Position(7, 9, floor, again_to)
    return position.is_older(MailInfo(uid, 100, received_at), now=NOW)


def test_a_mail_from_the_future_makes_nobody_deaf() -> None:
    """What comes in is new, whatever the newest arrival time of the first start was."""
    assert not older(NOW + 365 * DAY, NOW)
    assert not older(NOW + timedelta(seconds=5), NOW), "nor does a server's clock that is a little ahead"
    assert not older(None, NOW)


def test_old_mail_that_is_put_back_stays_old() -> None:
    """With a sound arrival time nothing from before the first start is answered when it is moved in again."""
    assert older(NOW - DAY, NOW - 2 * DAY)
    assert not older(NOW - DAY, NOW)
    assert older(NOW + 365 * DAY, NOW - 2 * DAY, again_to=10), "nor after the server has renumbered its mails"
