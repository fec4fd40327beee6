"""
After five hours without the daemon a guest's eleventh mail had its place in the past; it was answered an hour later all
the same, because the place counted from the mail's arrival and the wait from the daemon's taking it in.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.email.config import MailAnswerLimits
from channels.email.reply_limits import AnswerLimiter, AnswerSlot
from tests.clock import EPOCH
from tests.doubles import mailbox
from tests.doubles.imap_server import Dialogue
from tests.doubles.mailbox import Post, Store, config, raw_mail

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def limiter() -> AnswerLimiter:
    return AnswerLimiter(
        MailAnswerLimits.model_validate(
            dict.fromkeys(MailAnswerLimits.model_fields, 0) | {"sender_per_hour": 1}
        )
    )


def place(it: AnswerLimiter, name: str, *, came: float, taken: float) -> AnswerSlot | None:
    """Minutes after noon."""
    at, now = (NOON + timedelta(minutes=minutes) for minutes in (came, taken))
    return it.reserve(name, sender="a", at=at, now=now)


def waits(found: AnswerSlot | None) -> float:
    assert found is not None
    return found.wait_s / 60


@pytest.mark.parametrize(("taken", "left"), [(1, 59), (40, 20), (300, 0)])
def test_one_instant_however_late_the_mail_is_taken_in(taken: float, left: float) -> None:
    """The second mail's place is one o'clock. Whoever need not wait any more is not told to."""
    it = limiter()
    assert waits(place(it, "1", came=0, taken=taken)) == 0
    second = place(it, "2", came=1, taken=taken)
    assert second == AnswerSlot(left * 60, first=left > 0)


def test_reading_it_again_changes_nothing() -> None:
    """The place stays, so the wait gets shorter; after a restart, too."""
    it = limiter()
    place(it, "1", came=0, taken=0)
    assert waits(place(it, "2", came=0, taken=0)) == 60
    again = limiter()
    assert again.load(it.dump())
    assert waits(place(again, "2", came=0, taken=45)) == 15
    assert waits(place(again, "2", came=0, taken=90)) == 0


def test_a_mail_from_the_future_waits_no_longer_for_it() -> None:
    """A mail server's clock that is ahead keeps nobody waiting."""
    it = limiter()
    assert waits(place(it, "1", came=600, taken=0)) == 0
    assert waits(place(it, "2", came=600, taken=0)) == 60


def test_who_is_told_is_the_first_that_still_waits() -> None:
    """The second mail's place has passed, the third's has not."""
    it = limiter()
    found = [place(it, str(number), came=number, taken=70) for number in range(4)]
    assert found == [AnswerSlot(), AnswerSlot(), AnswerSlot(50 * 60, first=True), AnswerSlot(110 * 60)]


class CameEarlier(Store):
    """Its mails have arrived three quarters of an hour before the channel comes."""

    async def _fetch(self, server: Dialogue, tag: str, text: str) -> None:
        _, _, uids, items = text.split(" ", 3)
        came = (EPOCH - timedelta(minutes=45)).strftime("%d-%b-%Y %H:%M:%S +0000")
        for uid in self._chosen(uids) if "BODY" not in items else ():
            known = f"UID {uid} RFC822.SIZE {len(raw_mail(uid))}"
            await server.say(f'* {uid} FETCH ({known} INTERNALDATE "{came}")')
        if "BODY" in items:
            await super()._fetch(server, tag, text)
        else:
            await server.say(f"{tag} OK done")


@pytest.mark.virtual_time
class TestFromTheMailbox:
    async def test_the_wait_ends_with_the_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One answer an hour: the second mail of that moment waits for the quarter of an hour that is left."""
        limits = dict.fromkeys(MailAnswerLimits.model_fields, 0) | {"sender_per_hour": 1}
        monkeypatch.setattr(mailbox, "config", lambda port: config(port, limits=limits))
        store = CameEarlier()
        post = Post(store, tmp_path)
        async with post.running():
            store.uids += [1, 2]
            await post.inbox.until_accepted(2, within_s=600)
        first, second = post.inbox.accepted
        assert not first.context.wait_s
        assert second.context.wait_s < 15 * 60 + 1
        assert second.context.tell_wait
