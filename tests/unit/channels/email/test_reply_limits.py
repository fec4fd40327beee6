"""How many mails of one person, and of all, are answered in an hour and a day."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from channels.email import reply_limits
from channels.email.config import MailAnswerLimits
from channels.email.reply_limits import AnswerLimiter


class TestLimits:
    @staticmethod
    def limiter(**limits: int) -> AnswerLimiter:
        zero = dict.fromkeys(("sender_per_hour", "sender_per_day"), 0)
        return AnswerLimiter(MailAnswerLimits(**zero | limits))

    @staticmethod
    def ask(
        limiter: AnswerLimiter,
        name: str,
        *,
        minute: float = 0,
        sender: str = "a",
    ) -> bool:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
        return limiter.admit(name, sender=sender, at=at)

    @staticmethod
    def at_once(limiter: AnswerLimiter, name: str, *, minute: float = 0, sender: str = "a") -> bool:
        """Whether a mail is answered without a wait."""
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
        place = limiter.reserve(name, sender=sender, at=at)
        return place is not None and place.wait_s == 0

    @pytest.mark.parametrize(("limit", "remembered"), [(0, 0), (100, 20)])
    def test_without_limits_nothing_is_remembered(self, limit: int, remembered: int) -> None:
        """A day of mails costs no memory where nobody counts them."""
        limiter = self.limiter(sender_per_hour=limit)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        for number in range(20):
            place = limiter.reserve(f"m{number}", sender="a", at=at)
            assert place is not None
            assert place.wait_s == 0
        assert len(json.loads(limiter.dump())) == remembered

    @pytest.mark.parametrize("rule", ["sender_per_hour"])
    def test_an_hour_has_so_many(self, rule: str) -> None:
        """The third within an hour waits, and after the hour there is room again."""
        limiter = self.limiter(sender_per_hour=2)

        assert [self.at_once(limiter, f"m{n}", minute=n) for n in range(3)] == [True, True, False]
        assert self.at_once(limiter, "later", minute=62)

    def test_a_day_has_so_many(self) -> None:
        """Spread over the hours the daily limit holds."""
        limiter = self.limiter(sender_per_day=3)

        assert [self.ask(limiter, f"m{n}", minute=n * 90) for n in range(4)] == [True, True, True, False]
        assert self.ask(limiter, "b", minute=300, sender="b")
        assert self.ask(limiter, "next day", minute=24 * 60 + 1)

    def test_the_same_mail_gets_the_same_verdict(self) -> None:
        """Asking again counts nothing, also after a restart; a damaged file is refused whole."""
        limiter = self.limiter(sender_per_hour=1)
        assert self.ask(limiter, "one")
        assert not self.ask(limiter, "two")
        again = self.limiter(sender_per_hour=1)
        assert again.load(limiter.dump())

        assert self.ask(again, "one")
        assert not self.ask(again, "two")
        assert not again.load('[["x"]]')
        assert not again.load("garbage")
        assert not self.ask(again, "two")

    def test_what_is_refused_makes_no_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A flood is forgotten before what counts; the control is what counts when there is nothing else."""
        monkeypatch.setattr(reply_limits, "MAX_ENTRIES", 5)
        limiter = self.limiter(sender_per_hour=2)
        assert [self.ask(limiter, f"m{n}") for n in range(50)] == [True, True, *[False] * 48]
        assert len(json.loads(limiter.dump())) == 5
        assert all(self.ask(limiter, f"other {n}", sender=f"b{n}") for n in range(5))
        assert len(json.loads(limiter.dump())) == 5
        assert self.ask(limiter, "again")

    def test_what_waited_for_days_is_no_burst(self) -> None:
        """The time of arrival counts: a mail an hour over a weekend is never too many."""
        limiter = self.limiter(sender_per_hour=2)

        assert all(self.ask(limiter, f"m{n}", minute=n * 60) for n in range(48))
