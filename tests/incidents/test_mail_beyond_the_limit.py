"""
The eleventh mail of an hour was dropped as ``ignored/over_limit``: no answer, no apology, no notice, and the owner's
own as well, with the default settings.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync

from agent_core.messages import MessageContext
from channels.email.config import EmailConfig, MailAnswerLimits
from channels.email.loop_guard import LoopGuard
from channels.email.receive.mail_intake import MailIntake, read_arrival
from channels.email.reply_limits import MAX_WAITING, MAX_WAITING_IN_ALL, AnswerLimiter, AnswerSlot
from devservers import MailPeer, MailServer
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.store.states import InboxState
from gateway.store.stores import InboxRow
from gateway.system.home import open_home
from gateway.turns.failure_and_deferral import left_s, notice_text
from tests.clock import LoopClock, ManualClock
from tests.daemon import email_settings
from tests.integration.test_email_loops import Gateway, gateway, own
from tests.servers import own_mail_server

pytestmark = pytest.mark.slow

DEFAULTS: dict[str, Any] = {"limits": MailAnswerLimits().model_dump()}


mail_server = own_mail_server("bot", "guest", "owner", count=4)


async def write(peer: MailPeer, bot: str, count: int) -> None:
    for number in range(count):
        await run_sync(partial(peer.send, bot, f"Question {number}", f"hello {number}"))


async def answers(peer: MailPeer, bot: str, count: int) -> list[EmailMessage]:
    """The mails of the bot, as soon as there are so many."""
    with anyio.fail_after(60):
        while len(found := own(await run_sync(peer.list), bot)) < count:
            await anyio.sleep(0.3)
    return found


def texts(mails: list[EmailMessage]) -> list[str]:
    return [" ".join(str(mail.get_body(("plain",)).get_content()).split()) for mail in mails]  # type: ignore[union-attr]


async def ignored(built: Gateway) -> int:
    return (await built.store.maintenance.stats()).inbox.get(InboxState.IGNORED, 0)


async def test_the_owner_is_answered_as_often_as_the_owner_writes(
    mail_server: MailServer, tmp_path: Path
) -> None:
    """Thirteen mails within a minute, with the settings that everybody has: thirteen answers."""
    bot, peer = mail_server.address("bot0"), mail_server.peer("owner0")
    settings = DEFAULTS | {"circuit_breaker": {}}
    async with gateway(
        mail_server, tmp_path, "bot0", owner=mail_server.address("owner0"), **settings
    ) as built:
        await write(peer, bot, 13)
        got = await answers(peer, bot, 13)
        assert await ignored(built) == 0
    assert not [text for text in texts(got) if "I will answer it at about" in text]


async def test_a_guest_is_told_once_and_answered_in_their_turn(
    mail_server: MailServer, tmp_path: Path
) -> None:
    """
    Ten answers and one word about the rest; nobody is dropped, and when the hour is over both are answered, over a
    restart.
    """
    bot, peer = mail_server.address("bot1"), mail_server.peer("guest1")
    guest = mail_server.address("guest1")
    async with gateway(mail_server, tmp_path, "bot1", guest, **DEFAULTS) as built:
        await write(peer, bot, 12)
        got = await answers(peer, bot, 11)
        waiting = await built.store.inbox.rows(states=[InboxState.READY])
        assert len(waiting) == 2
        await anyio.sleep(2)
        assert len(await answers(peer, bot, 11)) == 11
        assert await ignored(built) == 0
    notices = [text for text in texts(got) if "I will answer it at about" in text]
    assert len(notices) == 1
    assert "UTC" in notices[0]

    later = LoopClock(datetime.now(UTC) + timedelta(minutes=61))
    channels = {"email": email_settings(mail_server, bot, "pw", guest, **DEFAULTS)}
    config = {"agents": {"heartbeat": {"enabled": False}}, "channels": channels}
    built = await build(Settings.model_validate(config), open_home(tmp_path), Overrides(clock=later))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        assert len(await answers(peer, bot, 13)) == 13
        built.stop()
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()


def limiter(**limits: int) -> AnswerLimiter:
    return AnswerLimiter(
        MailAnswerLimits.model_validate(dict.fromkeys(MailAnswerLimits.model_fields, 0) | limits)
    )


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ask(it: AnswerLimiter, name: object, *, minute: float = 0, sender: str = "a") -> AnswerSlot | None:
    at = NOON + timedelta(minutes=minute)
    return it.reserve(str(name), sender=sender, at=at)


def waits(it: AnswerLimiter, count: int, **more: Any) -> list[float]:
    """In minutes."""
    places = [ask(it, n, minute=n, **more) for n in range(count)]
    assert None not in places
    return [place.wait_s / 60 for place in places if place]


@pytest.mark.parametrize("rule", ["sender_per_hour"])
def test_each_gets_the_next_place(rule: str) -> None:
    """Two an hour: the third and fourth follow an hour after the first and second, and so on."""
    assert waits(limiter(sender_per_hour=2), 6) == [0, 0, 58, 58, 116, 116]


def test_a_day_has_so_many_places() -> None:
    """The day's limit counts, and the hour's within it."""
    it = limiter(sender_per_day=3, sender_per_hour=2)
    assert waits(it, 4) == [0, 0, 58, 24 * 60 - 3]


def test_never_more_than_the_limit_in_any_hour() -> None:
    """Whatever comes when: in no window of an hour more than six answers, and none out of order."""
    it = limiter(sender_per_hour=6)
    due = []
    for number in range(90):
        minute = (number * 7.3) % 11 + number * 0.9
        place = ask(it, number, minute=minute)
        if place is not None:
            due.append(minute * 60 + place.wait_s)
    assert len(due) > 60
    assert all(sum(1 for other in due if at - 3600 < other <= at) <= 6 for at in due)


def test_only_the_first_that_waits_is_told() -> None:
    """And the first of the next time; asking again for the same mail tells the same, over a restart, too."""
    it = limiter(sender_per_hour=1)
    assert [ask(it, n) for n in range(3)] == [AnswerSlot(), AnswerSlot(3600, True), AnswerSlot(7200, False)]
    again = limiter(sender_per_hour=1)
    assert again.load(it.dump())
    assert ask(again, 1) == AnswerSlot(3600, True)
    assert ask(again, "later", minute=150) == AnswerSlot(1800, True)
    assert not again.load('[["old", 1, "a", "t", true, true, 1, false, ""]]'), "another form is damaged"


def test_what_waits_is_bounded() -> None:
    """A flood is for a person to judge, and leaves room for others."""
    it = limiter(sender_per_hour=1)
    assert [ask(it, n) is None for n in range(MAX_WAITING + 3)] == [False] * (MAX_WAITING + 1) + [True] * 2
    assert ask(it, "other", sender="b") == AnswerSlot()


def test_a_domain_of_many_addresses_fills_nobodys_hours() -> None:
    """Of a thousand addresses each has a bucket; what waits is bounded in all, and who is new has their places."""
    it = limiter(sender_per_hour=1)
    flood = [ask(it, n, sender=f"{n % 700}@evil.test") for n in range(2100)]
    assert sum(place is not None and place.wait_s > 0 for place in flood) == MAX_WAITING_IN_ALL
    assert ask(it, "friend", sender="friend@x.test") == AnswerSlot()
    assert ask(it, "second", sender="friend@x.test") is None, "for a person to judge, and kept"


def intake(tmp_path: Path, alerts: list[str]) -> MailIntake:
    config = EmailConfig.model_validate(
        {
            "address": "bot@mail.test",
            "username": "bot",
            "password": "x",
            "imap": {"host": "h"},
            "smtp": {"host": "h"},
            "sender_verification": "off",
            "allow_from": ["*@p.test"],
            "limits": {"sender_per_hour": 1, "sender_per_day": 2},
        }
    )
    counted = AnswerLimiter(config.limits)
    tell = lambda about, text: alerts.append(f"{about}: {text}")  # noqa: E731
    safety = LoopGuard("email", config, counted, tmp_path / "l", clock=ManualClock(), alert=tell)
    is_owner = lambda address: address == "owner@p.test"  # noqa: E731
    return MailIntake("email", config, counted, is_owner=is_owner, crowded=safety.is_over_limit)


def contexts(it: MailIntake, sender: str, count: int) -> list[MessageContext]:
    found = []
    for number in range(count):
        raw = f"From: {sender}\r\nTo: bot@mail.test\r\nMessage-ID: <{number}@p.test>\r\n\r\nhi\r\n".encode()
        taken = it.convert(read_arrival(number, NOON, raw, whole=True), uidvalidity=1)
        found.append(taken.context)  # type: ignore[union-attr]
    return found


def test_who_has_limits(tmp_path: Path) -> None:
    """The owner has none; of a guest the owner hears when a day's answers are used up; a flood is kept for a person."""
    alerts: list[str] = []
    it = intake(tmp_path, alerts)
    assert not any(one.wait_s or one.refused for one in contexts(it, "owner@p.test", 50))
    assert alerts == []
    guest = contexts(it, "guest@p.test", MAX_WAITING + 5)
    assert [one.wait_s for one in guest[:3]] == [0, 3600, 86_400]
    assert [one.tell_wait for one in guest[:3]] == [False, True, False]
    assert guest[-1].quarantine == "over_limit"
    assert (
        "`guest@p.test` has received as many answers by mail on email as the limits allow for now"
        in alerts[0]
    )


@pytest.mark.parametrize(("minutes", "left"), [(0, 600), (5, 300), (10, 0), (60, 0), (-1, 0)])
def test_the_wait_is_counted_from_acceptance(minutes: int, left: float) -> None:
    """A clock that goes back does not make it longer."""
    it = intake(Path("unused"), [])
    raw = b"From: x@p.test\r\nTo: bot@mail.test\r\n\r\nhi\r\n"
    message: Any = it.convert(read_arrival(1, NOON, raw, whole=True), uidvalidity=1)
    message = message.with_context(MessageContext(wait_s=600.0))
    row = InboxRow(1, message, InboxState.READY, 0, 0, NOON, None, None)
    assert left_s(row, NOON + timedelta(minutes=minutes)) == left


def test_what_is_said() -> None:
    """The time, and the day if it is another one."""
    assert "about 12:41 UTC, in 41 minutes." in notice_text(41 * 60, NOON)
    assert "about 2026-01-02 02:00 UTC, in 14 hours." in notice_text(14 * 3600, NOON)
