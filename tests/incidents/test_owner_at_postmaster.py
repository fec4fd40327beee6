"""
The owner's address was `postmaster@`, and no mail from there was ever answered: its name looked like a robot's.

Only what a mail says of itself decides now (RFC 3834). Two programs that answer everything, and say of themselves
nothing, are ended by the limits.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_core.messages import InboundMessage, OutboundMessage
from channels.base import ChannelUnavailable
from channels.email.config import EmailConfig
from channels.email.loop_guard import LoopGuard
from channels.email.receive.mail_intake import MailIntake, read_arrival
from channels.email.reply_limits import AnswerLimiter
from tests.clock import ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)
ROBOT = "postmaster@mail.test"
CONFIG = EmailConfig.model_validate(
    {
        "address": "bot@mail.test", "username": "bot", "password": "x", "imap": {"host": "h"}, "smtp": {"host": "h"},
        "sender_verification": "off", "allow_from": [ROBOT],
    }
)  # fmt: skip


def mail(number: int, at: datetime, *more: str) -> bytes:
    fields = (
        f"From: {ROBOT}", "To: bot@mail.test", f"Message-ID: <{number}@mail.test>",
        "References: <first@mail.test>", "Subject: Automatic reply: Out of office", f"Date: {at:%a, %d %b %Y} 10:00 +0000",
    )  # fmt: skip
    return ("\r\n".join((*fields, *more)) + "\r\n\r\nI am away.\r\n").encode()


def intake(limiter: AnswerLimiter, *, owner: bool) -> MailIntake:
    return MailIntake("email", CONFIG, limiter, is_owner=lambda who: owner and who == ROBOT)


def taken(reader: MailIntake, number: int, at: datetime, *more: str) -> InboundMessage:
    arrival = read_arrival(number, at, mail(number, at, *more), whole=True)
    found = reader.convert(arrival, uidvalidity=1, now=at)
    assert isinstance(found, InboundMessage)
    return found


def test_the_owner_at_postmaster_is_answered() -> None:
    reader = intake(AnswerLimiter(CONFIG.limits), owner=True)
    assert taken(reader, 1, START).addressed
    control = taken(reader, 2, START, "Auto-Submitted: auto-replied")
    assert control.context.refused == "automatic_mail"


def test_two_robots_that_answer_everything_do_so_a_few_times_a_day() -> None:
    """Each answer brings a mail at once, which is answered when its place has come."""
    limiter = AnswerLimiter(CONFIG.limits)
    reader, at, answers = intake(limiter, owner=False), START, 0
    while at < START + timedelta(days=1):
        at += timedelta(seconds=1 + taken(reader, answers, at).context.wait_s)
        answers += 1
    assert answers <= CONFIG.limits.sender_per_day + 1


def test_a_robot_at_the_owners_address_is_ended_by_the_circuit_breaker(tmp_path: Path) -> None:
    """The owner is never kept waiting by the limits; what no person asks in an hour stops the thread."""
    clock = ManualClock()
    guard = LoopGuard(
        "email",
        CONFIG,
        AnswerLimiter(CONFIG.limits),
        tmp_path,
        clock=clock,
        is_owner=lambda who: who == ROBOT,
    )
    reader, answers = intake(AnswerLimiter(CONFIG.limits), owner=True), 0
    try:
        while answers < 1000:
            question = taken(reader, answers, clock.now())
            answer = OutboundMessage(
                id=str(answers), channel="email", account=question.account, session=question.session,
                text=f"answer {answers}", created_at=clock.now(), context={"reply_to": ROBOT},
            )  # fmt: skip
            guard.before_sending(answer)
            guard.count_sent_mail(answer, f"<{answers}>")
            answers += 1
            clock.advance(5)
    except ChannelUnavailable:
        pass
    assert answers == CONFIG.circuit_breaker.answers_per_hour
