"""
Invitations that the owner passes on by mail: into the calendar after a yes, and the organizer gets a reply that
programs read; with a real mail server, Radicale and Xandikos.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync
from icalendar import Calendar

from devservers import MailServer
from devservers.calendars import CalendarServer
from tests import mail_invitations as invitations
from tests.calendar_world import ZONE, card, event, started
from tests.doubles.agent import StreamingModel, call
from tests.integration.test_approvals_by_mail import Harness, mail_server, text_of

__all__ = ["mail_server"]
pytestmark = pytest.mark.integration
ID = re.compile(r'\[Attachment ([0-9a-f]{12}): "[^"]+\.ics"')


@pytest.fixture(scope="module", params=["radicale", "xandikos"])
def calendar(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CalendarServer]:
    yield from started(request.param, tmp_path_factory)


class Secretary(StreamingModel):
    """Answers the first file of a mail as the mail says, and repeats what became of it."""

    def __init__(self) -> None:
        self.tools: set[str] = set()

    async def answer(self, messages, tools):
        self.tools |= {tool.name for tool in tools}
        last = messages[-1]
        asked = next(each.content for each in reversed(messages) if each.role == "user")
        wish = re.search(r"^\W*(accept|decline|tentative|propose)( .*)?$", asked, re.MULTILINE)
        files = ID.findall(asked)
        again = last.role == "tool" and "was not loaded" in last.content
        letter = re.search(r"^\W*mail (\w+)$", asked, re.MULTILINE)
        if letter and (last.role == "user" or again):
            yield call("send_message", to=letter[1], text="I am late")
        elif wish and (last.role == "user" or again):
            at, _of, occurrence = (wish[2] or "").strip().partition(" of ")
            more = {name: said for name, said in (("start", at), ("occurrence", occurrence)) if said}
            yield call("answer_invitation", file=files[-1] if files else "none", answer=wish[1], **more)
        else:
            yield f"so: {last.content if last.role == 'tool' else 'good morning'}"


class House(Harness):
    """The owner's bot with a calendar, and an organizer whom it does not know."""

    def __init__(self, server: MailServer, number: int, folder: Path, calendar: CalendarServer) -> None:
        super().__init__(server, number, folder)
        self.model = Secretary()
        self.calendar, self.zone = calendar, ZONE
        self.more_tools = {"dav": {"url": calendar.url, "username": "you", "password": calendar.password}}
        self.organizer = server.address(f"eve{(number + 10) % 20}")
        self.people["organizer"] = server.peer(f"eve{(number + 10) % 20}")
        for name in calendar.names():
            calendar.request("DELETE", f"{calendar.home}main/{name}")

    async def bring(self, raw: bytes, who: str = "owner") -> None:
        await run_sync(lambda: self.people[who].submit([self.bot], raw))

    async def decide(self, word: str = "approve") -> str:
        """Answer the newest question; its text."""
        count = getattr(self, "decided", 0) + 1
        self.decided = count
        mail = (await self.mails("owner", lambda text: "I need your approval" in text, count))[-1]
        name = re.findall(r"\*{0,2}(a[0-9a-f]{6})\b", text_of(mail))[0]
        await self.write("owner", f"!{word} {name}", to=mail)
        return text_of(mail)

    async def said(self, count: int = 1) -> str:
        mails = await self.mails("owner", lambda text: text.startswith("so:"), count)
        return " ".join(text_of(mails[-1]).split())

    def stored(self) -> list[Calendar]:
        return [
            Calendar.from_ical(self.calendar.request("GET", f"{self.calendar.home}main/{name}")[1])
            for name in self.calendar.names()
        ]

    async def replies(self, count: int) -> list[EmailMessage]:
        return await self.mails("organizer", lambda _: True, count)


def itip(mail: EmailMessage, method: str = "REPLY") -> Calendar:
    """The reply as a program finds it: a version of the text, with its method."""
    assert mail.get_content_type() == "multipart/alternative"
    (part,) = [each for each in mail.walk() if each.get_content_type() == "text/calendar"]
    assert part.get_param("method") == method
    return Calendar.from_ical(part.get_content())


FORMS = {
    "outlook": (invitations.outlook, invitations.as_version, "Wed 2026-12-02 10:00-11:00"),
    "google": (invitations.google, invitations.as_file, "Thu 2026-12-03 10:00-10:30"),
    "icloud": (invitations.icloud, invitations.as_mail, "Sat 2026-12-05, all day"),
}


@pytest.mark.parametrize(("number", "program"), list(enumerate(FORMS)))
async def test_an_invitation_is_accepted(
    mail_server: MailServer, calendar: CalendarServer, tmp_path: Path, number: int, program: str
) -> None:
    """Nothing before the yes; then it is in the calendar under its own UID, and one reply is with the organizer."""
    house = House(mail_server, number + 3 * (calendar.kind == "xandikos"), tmp_path, calendar)
    write, carry, when = FORMS[program]
    owner = house.address("owner")
    invitation = write(house.organizer, [owner])
    async with house.running():
        await house.bring(carry(owner, house.bot, "accept", invitation))
        await house.mails("owner", lambda text: "I need your approval" in text)
        assert house.stored() == []
        question = await house.decide()
        assert when in question
        assert house.organizer in question
        told = await house.said()
        assert "It is in the calendar" in told, told
        (mail,) = await house.replies(1)
        await anyio.sleep(1)
        assert len(await house.replies(1)) == 1
    (kept,) = [each.walk("VEVENT")[0] for each in house.stored()]
    sent = Calendar.from_ical(invitation).walk("VEVENT")[0]
    assert kept["UID"] == sent["UID"]
    assert kept.start == sent.start
    assert kept["ORGANIZER"].params["SCHEDULE-AGENT"] == "CLIENT"
    assert kept.walk("VALARM") == []
    mine = next(each for each in kept.attendees if owner in each.lower())
    assert mine.params["PARTSTAT"] == "ACCEPTED"
    reply = itip(mail)
    (answered,) = reply.walk("VEVENT")
    assert reply["METHOD"] == "REPLY"
    assert answered["UID"] == sent["UID"]
    assert answered["SEQUENCE"] == sent["SEQUENCE"]
    assert answered["ORGANIZER"] == sent["ORGANIZER"]
    assert "SCHEDULE-AGENT" not in answered["ORGANIZER"].params
    (who,) = answered.attendees
    assert who == f"mailto:{owner}"
    assert who.params["PARTSTAT"] == "ACCEPTED"
    assert who.params["SENT-BY"] == f"mailto:{house.bot}"
    assert str(mail["To"]) == house.organizer
    assert str(mail["From"]) == house.bot


async def test_it_is_moved_cancelled_and_forged(
    mail_server: MailServer, calendar: CalendarServer, tmp_path: Path
) -> None:
    """An update replaces it and is replied to; another organizer's is refused, and one out of date; then it ends."""
    house = House(mail_server, 6 + (calendar.kind == "xandikos"), tmp_path, calendar)
    owner, by = house.address("owner"), house.organizer
    async with house.running():
        for text in (
            invitations.outlook(by, [owner]),
            invitations.outlook(by, [owner], number=1, start="20261202T140000"),
        ):
            await house.bring(invitations.as_version(owner, house.bot, "accept", text))
            asked = await house.decide()
            await house.replies(house.decided)
            await house.said(house.decided)
        assert "10:00-11:00" in asked
        assert "14:00-15:00" in asked
        late = invitations.outlook(by, [owner], number=0)
        forged = invitations.outlook(house.address("eve"), [owner], number=2, start="20261202T200000")
        for count, (text, why) in enumerate(((late, "newer version"), (forged, "another organizer")), 3):
            await house.bring(invitations.as_version(owner, house.bot, "accept", text))
            assert why in await house.said(count)
        (kept,) = [each.walk("VEVENT")[0] for each in house.stored()]
        assert kept.start.hour == 14
        gone = invitations.outlook(by, [owner], method="CANCEL", number=2, start="20261202T140000")
        await house.bring(invitations.as_version(owner, house.bot, "accept", gone, "CANCEL"))
        assert "(cancelled)" in await house.decide()
        assert "No reply is sent." in await house.said(5)
        (kept,) = [each.walk("VEVENT")[0] for each in house.stored()]
        assert kept["STATUS"] == "CANCELLED"
        assert len(await house.replies(2)) == 2


async def test_another_time_is_proposed(
    mail_server: MailServer, calendar: CalendarServer, tmp_path: Path
) -> None:
    """Nothing goes out before the yes; the organizer gets it once, and what they say to it is told."""
    house = House(mail_server, 14 + (calendar.kind == "xandikos"), tmp_path, calendar)
    owner, by = house.address("owner"), house.organizer
    async with house.running():
        raw = invitations.as_version(
            owner, house.bot, "propose 2026-12-02 15:00", invitations.outlook(by, [owner])
        )
        await house.bring(raw)
        await house.mails("owner", lambda text: "I need your approval" in text)
        assert await run_sync(house.people["organizer"].list) == []
        question = await house.decide()
        assert f"Another time, Wed 2026-12-02 15:00-16:00 is the reply to {by}" in " ".join(question.split())
        (mail,) = await house.replies(1)
        assert "proposes another time" in text_of(mail)
        counter = itip(mail, "COUNTER")
        assert counter["METHOD"] == "COUNTER"
        assert counter.walk("VEVENT")[0].start.hour == 15
        await house.said()
        no = invitations.outlook(by, [owner], method="DECLINECOUNTER")
        await house.bring(invitations.as_version(owner, house.bot, "accept", no, "DECLINECOUNTER"))
        assert "does not take the other time" in await house.said(2)
        assert len(await house.replies(1)) == 1
    (kept,) = [each.walk("VEVENT")[0] for each in house.stored()]
    assert kept.start.hour == 10
    assert "PARTSTAT=TENTATIVE" in kept.to_ical().decode().replace("\r\n ", "")


async def test_another_time_is_proposed_for_one_of_a_series(
    mail_server: MailServer, calendar: CalendarServer, tmp_path: Path
) -> None:
    """The organizer gets it for that one alone, and the calendar keeps the series as it was accepted."""
    house = House(mail_server, 10 + (calendar.kind == "xandikos"), tmp_path, calendar)
    owner, by = house.address("owner"), house.organizer
    series = invitations.outlook(by, [owner], more=["RRULE:FREQ=DAILY;COUNT=5"])
    async with house.running():
        await house.bring(invitations.as_file(owner, house.bot, "accept", series))
        await house.decide()
        await house.said()
        words = "propose 2026-12-04 15:00 of 2026-12-04 10:00"
        await house.bring(invitations.as_file(owner, house.bot, words, series))
        question = " ".join((await house.decide()).split())
        assert "Fri 2026-12-04 10:00-11:00 → Fri 2026-12-04 15:00-16:00" in question
        mails = await house.replies(2)
        (said,) = itip(mails[-1], "COUNTER").walk("VEVENT")
        assert (said["RECURRENCE-ID"].dt.hour, said.start.hour, "RRULE" in said) == (10, 15, False)
    (kept,) = [each.walk("VEVENT")[0] for each in house.stored()]
    assert (kept.start.hour, "RRULE" in kept) == (10, True)
    assert "PARTSTAT=ACCEPTED" in kept.to_ical().decode().replace("\r\n ", "")


async def test_declined_and_said_no(
    mail_server: MailServer, calendar: CalendarServer, tmp_path: Path
) -> None:
    """What is declined is not stored, and the organizer hears of it; after the owner's no nothing happens."""
    house = House(mail_server, 8 + (calendar.kind == "xandikos"), tmp_path, calendar)
    owner = house.address("owner")
    raw = invitations.as_file(owner, house.bot, "decline", invitations.google(house.organizer, [owner]))
    async with house.running():
        await house.bring(raw)
        await house.decide("reject")
        await house.said()
        assert await run_sync(house.people["organizer"].list) == []
        await house.bring(raw.replace(b"Message-ID: <", b"Message-ID: <2"))
        assert "Declined is the reply" in await house.decide()
        (mail,) = await house.replies(1)
        assert itip(mail).walk("VEVENT")[0].attendees[0].params["PARTSTAT"] == "DECLINED"
    assert house.stored() == []


async def test_strangers_and_forgers_only_bring_data(
    mail_server: MailServer, calendar: CalendarServer, tmp_path: Path
) -> None:
    """Whoever is let in has no such tool, and a mail that only says that it is the owner's gets no turn."""
    house = House(mail_server, 16 + (calendar.kind == "xandikos"), tmp_path, calendar)
    owner = house.address("owner")
    event_of = invitations.outlook(house.address("guest"), [owner, house.bot])
    async with house.running():
        forged = invitations.as_version(owner, house.bot, "accept", event_of)
        await run_sync(lambda: mail_server.inject(house.bot, forged, sender="x@elsewhere.test"))
        await house.bring(
            invitations.as_version(house.address("guest"), house.bot, "accept", event_of), "guest"
        )
        (told,) = await house.mails("guest", lambda text: text.startswith("so:"))
        assert "It is in" not in text_of(told)
        assert house.model.tools
        assert "answer_invitation" not in house.model.tools
        await house.write("owner", "good morning")
        await house.said()
    assert house.stored() == []


async def test_an_appointment_of_the_owner_is_not_replaced(
    mail_server: MailServer, calendar: CalendarServer, tmp_path: Path
) -> None:
    """An invitation that has the UID of one of them is refused."""
    house = House(mail_server, 18 + (calendar.kind == "xandikos"), tmp_path, calendar)
    owner = house.address("owner")
    own = event(
        "4qk2v7c1m8n5b3x9z0l6j@google.com", "DTSTART:20261203T090000Z", "DURATION:PT1H", summary="Mine"
    )
    calendar.put(f"{calendar.home}main/own.ics", own)
    async with house.running():
        raw = invitations.as_file(owner, house.bot, "accept", invitations.google(house.organizer, [owner]))
        await house.bring(raw)
        assert "another organizer (yourself)" in await house.said()
    assert [str(each.walk("VEVENT")[0]["SUMMARY"]) for each in house.stored()] == ["Mine"]


async def test_a_contact_who_never_wrote_is_mailed(
    mail_server: MailServer, calendar: CalendarServer, tmp_path: Path
) -> None:
    """Found by name in the address book, shown by address, and mailed after the yes; nobody else is known."""
    house = House(mail_server, 12 + (calendar.kind == "xandikos"), tmp_path, calendar)
    calendar.put(f"{calendar.books}people/bob.vcf", card("Bob Miller", house.organizer))
    async with house.running():
        await house.write("owner", "mail Zoe")
        assert "not a known recipient" in await house.said()
        await house.write("owner", "mail Bob")
        assert f"to: email:{house.organizer}" in await house.decide()
        (mail,) = await house.replies(1)
        assert "says: I am late" in text_of(mail)
        await house.said(2)
