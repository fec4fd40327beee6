"""The circuit breaker in the hands of the channel: what it stops, what it keeps over a restart, and whom it tells."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent_core.language import speaking, use_language
from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.base import ChannelAuthFailed, ChannelUnavailable
from channels.email.config import EmailConfig, MailAnswerLimits
from channels.email.loop_guard import RECHECK_S, LoopGuard
from channels.email.parse.dsn import BounceReport, DeliveryStatus
from channels.email.parse.mail_threads import message_id_of
from channels.email.reply_limits import AnswerLimiter
from tests.clock import ManualClock
from tests.unit.channels.email.test_reply_limits_breaker import NONE

THREAD = SessionKey("email", "thread-" + "a" * 24, "alice@mail.test")

OTHER = SessionKey("email", "thread-" + "b" * 24, "bob@mail.test")


def answer(
    text: str = "Hello", *, session: SessionKey = THREAD, key: str = "k", **more: Any
) -> OutboundMessage:
    return OutboundMessage(
        id=key,
        channel="email",
        account="bot@mail.test",
        session=session,
        text=text,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        **more,
    )


class TestSafety:
    @staticmethod
    def make(tmp_path: Path, **limits: Any) -> tuple[LoopGuard, ManualClock, list[str]]:
        config = EmailConfig.model_validate(
            {
                "address": "bot@mail.test",
                "username": "bot",
                "password": "x",
                "imap": {"host": "h"},
                "smtp": {"host": "h"},
                "sender_verification": "off",
                "circuit_breaker": NONE | limits,
            }
        )
        clock, told = ManualClock(), []
        limiter = AnswerLimiter(MailAnswerLimits())
        safety = LoopGuard(
            "email", config, limiter, tmp_path, clock=clock, alert=lambda _, text: told.append(text)
        )
        return safety, clock, told

    def test_a_loop_is_stopped_and_told_once(self, tmp_path: Path) -> None:
        """The answer waits as long as the circuit breaker is open; alerts to the owner go out all the same."""
        safety, clock, told = self.make(tmp_path, thread_answers_per_hour=2)
        for _ in range(2):
            safety.before_sending(answer())
            safety.count_sent_mail(answer(), "<id>")
        for _ in range(3):
            with pytest.raises(ChannelUnavailable, match="circuit breaker") as caught:
                safety.before_sending(answer())
            assert caught.value.retry_after_s == RECHECK_S
            clock.advance(60)
        safety.before_sending(answer(session=OTHER))
        safety.before_sending(answer(kind=OutboundKind.ALERT))
        assert len(told) == 1
        assert "looks like a loop" in told[0]
        clock.advance(3600)
        safety.before_sending(answer())

    async def test_the_owner_reads_it_in_their_language(self, tmp_path: Path) -> None:
        """Not in that of the person whose answer is stopped; what an operator reads is English for everybody."""
        safety, clock, told = self.make(tmp_path, thread_answers_per_hour=1)
        await safety.load()
        safety.count_sent_mail(answer(), "<id>")
        with speaking("de"):
            with pytest.raises(ChannelUnavailable, match="1 answers went into one thread"):
                safety.before_sending(answer())
            safety.is_over_limit("alice@mail.test", 7200)
            safety.note_login_refusal(ChannelAuthFailed("no"))
            detail = safety.describe()
        assert "1 answers went into one thread within an hour" in detail
        assert "`alice@mail.test`" in told[0]
        assert [text.split()[0] for text in told] == ["I", "`alice@mail.test`", "No"]
        await safety.save()
        with use_language("de"):  # the control: a home that is German
            told.clear()
            clock.advance(3601)
            safety.count_sent_mail(answer(), "<id>")
            with pytest.raises(ChannelUnavailable):
                safety.before_sending(answer())
        assert "1 Antworten gingen innerhalb einer Stunde" in told[0]

    def test_what_comes_at_a_time_is_no_loop(self, tmp_path: Path) -> None:
        """A reminder every quarter of an hour is the same text again and again; answers stop, it does not."""
        safety, _, told = self.make(tmp_path, thread_answers_per_hour=2, answers_per_hour=3)
        reminder = answer(
            "Stretch", context={"route": {"message_id": "<m@x>"}, "notes": {"job": {"id": "abcde"}}}
        )
        for _ in range(9):
            safety.before_sending(reminder)
            safety.count_sent_mail(reminder, "<id>")
        safety.before_sending(answer())
        assert told == []
        assert safety.describe() == ""

    async def test_a_pulled_brake_is_kept_at_once(self, tmp_path: Path) -> None:
        """Whatever kills the process next: the next one knows, says so in the status, and a person can end it."""
        safety, clock, told = self.make(tmp_path, thread_answers_per_hour=1)
        await safety.load()
        safety.count_sent_mail(answer(), "<id>")
        await safety.save()
        assert not (tmp_path / "answer-brake.json").exists(), "counts are kept every few seconds"
        assert safety.describe() == ""
        with pytest.raises(ChannelUnavailable):
            safety.before_sending(answer())
        await safety.save()

        after, later, told_again = self.make(tmp_path, thread_answers_per_hour=1)
        await after.load()
        assert "squidbot email reset-breaker" in after.describe()
        assert "1 answers went into one thread" in after.describe()
        with pytest.raises(ChannelUnavailable):
            after.before_sending(answer("another"))
        assert (len(told), told_again) == (1, [])
        assert len(await after.reset_breaker()) == 1
        assert after.describe() == ""
        after.before_sending(answer())
        third, _, _ = self.make(tmp_path, thread_answers_per_hour=1)
        await third.load()
        assert third.describe() == ""
        later.advance(10)
        clock.advance(10)

    async def test_counts_are_kept_in_the_end(self, tmp_path: Path) -> None:
        """An orderly stop loses none of them; in between a file is written every few seconds at most."""
        safety, clock, _ = self.make(tmp_path, thread_answers_per_hour=2)
        safety.count_sent_mail(answer(), "<id>")
        await safety.save(now=True)
        first = (tmp_path / "answer-brake.json").read_text()
        safety.count_sent_mail(answer("other"), "<id2>")
        await safety.save()
        assert (tmp_path / "answer-brake.json").read_text() == first
        clock.advance(6)
        await safety.save()
        assert (tmp_path / "answer-brake.json").read_text() != first

    def test_which_reports_count(self, tmp_path: Path) -> None:
        """Those with evidence, and about the recipient alone; none keeps anybody from being answered."""
        safety, _clock, told = self.make(tmp_path)

        def sent(key: str, **more: Any) -> str:
            message = answer(key=key, **more)
            message_id = message_id_of(key, message.session, account="bot@mail.test")
            safety.count_sent_mail(message, message_id)
            return message_id

        def came(
            message_id: str,
            who: str = "alice@mail.test",
            fate: DeliveryStatus = DeliveryStatus.FAILED,
            **more: Any,
        ) -> bool:
            known = {"outside": False, "verified": ""} | more
            return safety.mails.accept_report(BounceReport((message_id,), fate, who, "550"), **known) == {
                message_id
            }

        never_sent = message_id_of("other", THREAD, account="bot@mail.test")
        ours = [sent(f"k{number}") for number in range(6)]
        copied = [sent(f"c{number}", context={"cc": ["bob@mail.test"]}) for number in range(3)]
        for message_id in ours:
            assert not came(never_sent)
            assert not came(message_id, "bob@mail.test")
            assert not came(message_id, "")
            assert not came(message_id, fate=DeliveryStatus.DELAYED)
            assert not came(message_id, outside=True)
            assert not came(message_id, verified="mallory@evil.test", outside=True)
        for message_id in copied:
            assert not came(message_id)
            assert not came(message_id, verified="mallory@mail.test", outside=True)  # at their provider
        assert came(ours[0])
        assert came(ours[1], "Alice@mail.test", verified="postmaster@mail.test", outside=True)
        assert told == [], "whoever's mails bounce is answered all the same"
        safety.before_sending(answer())
