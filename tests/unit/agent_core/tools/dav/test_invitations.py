"""What becomes of an invitation in a calendar, whoever has written it, and what is replied."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from icalendar import Calendar

from agent_core.tools.dav.dav_child import answer
from agent_core.tools.dav.events import Unusable, change_event, span_in_words
from agent_core.tools.dav.invitations import answer_invitation, find_by_uid, uid_in
from tests.calendar_world import NOW, ZONE, event
from tests.mail_invitations import OUTLOOK_UID, google, icloud, outlook

BOB, ME, BOT = "bob@corp.test", "owner@mail.test", "bot@mail.test"
ZONE_OF_OUTLOOK = "TZID=W. Europe Standard Time"


OTHER = "\r\nUID:u\r\nDTSTART:20261202T120000Z\r\nEND:VEVENT\r\n"


def answered(
    data: str, stored: str = "", how: str = "accept", *, mine: tuple[str, ...] = (ME, BOT), **times: str
) -> Any:
    return answer_invitation(
        data, stored, how, mine=mine, sent_by=BOT, zone=ZoneInfo(ZONE), now=NOW, times=times
    )


def events_in(data: str) -> list[Any]:
    return Calendar.from_ical(data).walk("VEVENT")


def series(**more: Any) -> str:
    return outlook(BOB, [ME], more=["RRULE:FREQ=DAILY;COUNT=5", *more.pop("more", ())], **more)


def one_of(start: str = "20261203T130000", **more: Any) -> str:
    """One occurrence of the series that has been moved."""
    return outlook(BOB, [ME], start=start, more=[f"RECURRENCE-ID;{ZONE_OF_OUTLOOK}:20261203T100000"], **more)


@pytest.mark.parametrize("write", [outlook, google, icloud])
def test_the_same_answer_changes_nothing(write: Any) -> None:
    """The control: another one does, and keeps the UID."""
    data = write(BOB, [ME])
    first = answered(data)
    assert not first["same"]
    assert first["reply"]
    assert answered(data, first["data"])["same"]
    other = answered(data, first["data"], "tentative")
    assert not other["same"]
    assert events_in(other["data"])[0]["UID"] == uid_in(data)
    assert answered(data, "", "decline")["data"] == ""


def test_one_of_a_series_is_moved_and_cancelled() -> None:
    """Beside the series, and instead of an earlier exception."""
    whole = answered(series())["data"]
    moved = answered(one_of(number=1), whole)
    assert "13:00-14:00" in moved["after"]
    assert len(events_in(moved["data"])) == 2
    (said,) = events_in(moved["reply"])
    assert said["RECURRENCE-ID"].dt.hour == 10
    gone = answered(one_of(number=2, method="CANCEL"), moved["data"])
    kept = {"RECURRENCE-ID" in each: each for each in events_in(gone["data"])}
    assert kept[True]["STATUS"] == "CANCELLED"
    assert kept[False]["STATUS"] == "CONFIRMED"
    assert not gone["reply"]
    unknown = answered(one_of(number=2, method="CANCEL"), whole)
    assert len(events_in(unknown["data"])) == 2
    ended = answered(series(number=3, method="CANCEL"), moved["data"])
    assert {str(each["STATUS"]) for each in events_in(ended["data"])} == {"CANCELLED"}
    assert answered(series(method="CANCEL"))["same"]


def test_a_series_at_another_time_has_no_exceptions_left() -> None:
    """The control: with a new title alone it keeps them."""
    moved = answered(one_of(number=1), answered(series())["data"])["data"]
    assert len(events_in(answered(series(number=2).replace("Planung", "Rat"), moved)["data"])) == 2
    assert len(events_in(answered(series(number=2, start="20261202T080000"), moved)["data"])) == 1


@pytest.mark.parametrize(
    ("data", "times", "when"),
    [
        (outlook(BOB, [ME]), {"start": "2026-12-02 15:00"}, "Wed 2026-12-02 15:00-16:00"),
        (
            google(BOB, [ME]),
            {"start": "2026-12-04 9:00", "end": "2026-12-04 11:15"},
            "Fri 2026-12-04 09:00-11:15",
        ),
        (
            one_of(),
            {"start": "2026-12-05T08:00+00:00"},
            "Thu 2026-12-03 13:00-14:00 → Sat 2026-12-05 09:00-10:00",
        ),
        (icloud(BOB, [ME]).replace("RRULE", "X-RRULE"), {"start": "2026-12-12"}, "Sat 2026-12-12, all day"),
    ],
)
def test_another_time_is_proposed(data: str, times: dict[str, str], when: str) -> None:
    """The organizer gets all that RFC 5546 wants, about the version that was sent; the calendar keeps theirs."""
    found = answered(data, "", "propose", **times)
    asked = Calendar.from_ical(data).walk("VEVENT")[0]
    counter = Calendar.from_ical(found["reply"])
    (said,) = counter.walk("VEVENT")
    assert counter["METHOD"] == "COUNTER"
    assert found["proposed"] == when
    assert span_in_words(said.start, said.end, ZoneInfo(ZONE)) == when.rpartition("→ ")[2]
    for name in ("UID", "SEQUENCE", "ORGANIZER", "SUMMARY", "RECURRENCE-ID"):
        assert said.get(name) == asked.get(name), name
    assert [each.params["PARTSTAT"] for each in said.attendees] == ["TENTATIVE"]
    (kept,) = events_in(found["data"])
    assert kept.start == asked.start
    assert answered(data, found["data"], "propose", **times)["same"]


@pytest.mark.parametrize(
    ("data", "start", "why"),
    [
        (series(), "2026-12-02 15:00", "which of its times"),
        (
            outlook(BOB, [ME]).replace("COUNTER:FALSE", "COUNTER:TRUE"),
            "2026-12-02 15:00",
            "wants no proposals",
        ),
        (outlook(BOB, ["else@corp.test"]), "2026-12-02 15:00", "nobody asks"),
        (outlook(BOB, [ME], method="CANCEL"), "2026-12-02 15:00", "nobody asks"),
        (outlook(BOB, [ME]), "2026-12-02 10:00", "has already"),
        (outlook(BOB, [ME]), "2026-11-02 10:00", "is over"),
        (outlook(BOB, [ME]), "", "Give 'start'"),
        (outlook(BOB, [ME]), "soon", "is no time"),
    ],
)
def test_no_other_time_is_proposed(data: str, start: str, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        answered(data, "", "propose", start=start)


@pytest.mark.parametrize(
    ("data", "occurrence", "start", "when"),
    [
        (series(), "2026-12-04 10:00", "2026-12-04 15:00", "Fri 2026-12-04 10:00-11:00 → Fri 2026-12-04 15:00-16:00"),
        (series(), "2026-12-04T09:00Z", "2026-12-05 8:30", "Fri 2026-12-04 10:00-11:00 → Sat 2026-12-05 08:30-09:30"),
        (icloud(BOB, [ME]), "2026-12-12", "2026-12-13", "Sat 2026-12-12, all day → Sun 2026-12-13, all day"),
    ],
)  # fmt: skip
def test_another_time_is_proposed_for_one_of_a_series(
    data: str, occurrence: str, start: str, when: str
) -> None:
    """The organizer is told which one, and gets no rule; the series stays as it is, and accepted if it was."""
    found = answered(data, "", "propose", occurrence=occurrence, start=start)
    (asked,) = events_in(data)
    counter = Calendar.from_ical(found["reply"])
    (said,) = counter.walk("VEVENT")
    assert counter["METHOD"] == "COUNTER"
    assert found["proposed"] == when
    assert "RRULE" not in said
    assert said.get("SEQUENCE") == asked.get("SEQUENCE")
    assert (
        span_in_words(said["RECURRENCE-ID"].dt, said["RECURRENCE-ID"].dt, ZoneInfo(ZONE))
        in when.partition("-11:00")[0]
    )
    assert said["RECURRENCE-ID"].params.get("TZID") == asked["DTSTART"].params.get("TZID")
    (kept,) = events_in(found["data"])
    assert (kept.start, kept["RRULE"]) == (asked.start, asked["RRULE"])
    assert [each.params["PARTSTAT"] for each in said.attendees] == ["TENTATIVE"]
    accepted = answered(data)["data"]
    assert answered(data, accepted, "propose", occurrence=occurrence, start=start)["same"]
    assert not answered(data, accepted, "tentative")["same"]  # the control


@pytest.mark.parametrize(
    ("occurrence", "start", "why"),
    [
        ("2026-12-04 11:00", "2026-12-04 15:00", "nothing at that time"),
        ("2026-12-09 10:00", "2026-12-09 15:00", "nothing at that time"),
        ("2026-12-04 10:00", "2026-12-04 10:00", "has already"),
        ("friday", "2026-12-04 15:00", "is no time"),
    ],
)
def test_what_of_a_series_cannot_be_moved(occurrence: str, start: str, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        answered(series(), "", "propose", occurrence=occurrence, start=start)


def test_a_proposal_that_is_declined_changes_nothing() -> None:
    """Also if the message has no times; that of another organizer is refused."""
    stored = answered(outlook(BOB, [ME]), "", "propose", start="2026-12-02 15:00")["data"]
    declined = outlook(BOB, [ME], method="DECLINECOUNTER")
    short = re.sub(r"\r\n(DTSTART|DTEND);[^\r]*(?=\r\nDTEND|\r\nCLASS)", "", declined)
    assert "Standard Time:2026" not in short
    for data in (declined, short):
        with pytest.raises(Unusable, match="stays as it was:\nPlanung Q1\nWed 2026-12-02 10:00-11:00"):
            answered(data, stored)
    with pytest.raises(Unusable, match="does not have it"):
        answered(short)
    with pytest.raises(Unusable, match="another organizer"):
        answered(outlook("eve@x.test", [ME], method="DECLINECOUNTER"), stored)


def test_own_alarms_stay_and_others_do_not_come() -> None:
    stored = answered(outlook(BOB, [ME]))["data"]
    assert "VALARM" not in stored
    mine = stored.replace(
        "END:VEVENT", "BEGIN:VALARM\r\nACTION:DISPLAY\r\nTRIGGER:-PT5M\r\nEND:VALARM\r\nEND:VEVENT"
    )
    (kept,) = events_in(answered(outlook(BOB, [ME], number=1), mine)["data"])
    assert [str(each["TRIGGER"].to_ical().decode()) for each in kept.walk("VALARM")] == ["-PT5M"]


def test_own_changes_leave_the_organizers_number() -> None:
    """So that their next version is newer; the control is an appointment of one's own."""
    stored = answered(outlook(BOB, [ME]))["data"]
    changed = change_event(stored, {"notes": "mine"}, occurrence="", zone=ZoneInfo(ZONE), now=NOW)["data"]
    assert int(events_in(changed)[0]["SEQUENCE"]) == 0
    own = event("u", "DTSTART:20261202T120000Z", "DURATION:PT1H")
    assert (
        "SEQUENCE:1"
        in change_event(own, {"notes": "mine"}, occurrence="", zone=ZoneInfo(ZONE), now=NOW)["data"]
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (outlook(BOB, ["else@corp.test"]), "is not invited"),
        (outlook(ME, [ME, BOT]), "organizes it"),
        (outlook(BOT, [ME]), "is organized by the bot"),
        (outlook("bob@corp.test?cc=all@corp.test", [ME]), "has no plain address"),
        (outlook("bob@corp.test>\\nBcc: x", [ME]), "has no plain address"),
        (outlook(BOB, [ME], method="PUBLISH"), "nobody asks"),
        (outlook(BOB, [ME]).replace("METHOD:REQUEST\r\n", ""), "nobody asks"),
    ],
)
def test_nobody_is_replied_to(data: str, why: str) -> None:
    found = answered(data)
    assert found["reply"] == "", why
    assert found["data"]
    assert ("SCHEDULE-AGENT=CLIENT" in found["data"]) == ("organize" not in why and "invited" not in why)


def test_the_bot_answers_for_itself_where_only_it_is_invited() -> None:
    (said,) = events_in(answered(outlook(BOB, [BOT]))["reply"])
    assert said.attendees == [f"mailto:{BOT}"]
    assert "SENT-BY" not in said.attendees[0].params


@pytest.mark.parametrize(
    ("data", "stored", "why"),
    [
        ("", "", "cannot be read"),
        ("\0\xff", "", "cannot be read"),
        (event("u", summary="no start"), "", "cannot be read"),
        (outlook(BOB, [ME]).replace("UID:", "X-UID:"), "", "cannot be read"),
        (outlook(BOB, [ME], method="REPLY"), "", "REPLY message"),
        (outlook(BOB, [ME], method="COUNTER"), "", "COUNTER message"),
        (outlook(BOB, [ME], number=1), outlook(BOB, [ME], number=2), "newer version"),
        (outlook("eve@x.test", [ME]), outlook(BOB, [ME]), "another organizer"),
        (outlook(BOB, [ME]), event(OUTLOOK_UID, "DTSTART:20261202T120000Z"), "another organizer"),
        (
            google(BOB, [ME]).replace("BEGIN:VEVENT", f"BEGIN:VEVENT{OTHER}BEGIN:VEVENT", 1),
            "",
            "several appointments",
        ),
        (outlook(BOB, [ME], more=[f"ATTENDEE;CN=x:mailto:{'a' * 60_000}@x.test"]), "", ""),
    ],
)
def test_what_is_refused(data: str, stored: str, why: str) -> None:
    if not why:
        assert len(answered(data, stored)["reply"]) < 5_000
        return
    with pytest.raises(Unusable, match=why):
        answered(data, stored)


def test_whatever_the_file_has_the_process_answers() -> None:
    """Each line left out, or broken."""
    lines = outlook(BOB, [ME], more=["RRULE:FREQ=DAILY"]).split("\r\n")
    for number in range(len(lines)):
        for line in ([], ["X" * 50], ["DTSTART:soon"], ["SEQUENCE:x"], ["RRULE:FREQ=DAILY", "RRULE:x"]):
            data = "\r\n".join([*lines[:number], *line, *lines[number + 1 :]])
            request = {
                "operation": "answer",
                "data": b64encode(data.encode()).decode(),
                "stored": "",
                "answer": "accept",
                "mine": [ME],
                "sent_by": BOT,
                "only_uid": False,
                "times": {},
                "zone": ZONE,
                "now": NOW.isoformat(),
            }
            said = json.loads(answer(request))
            assert "problem" in said or said["data"]


def test_it_is_found_by_its_uid() -> None:
    """Among others, some of which nobody can read."""
    data = [event("u2"), "rubbish", event("u")]
    objects = [{"id": f"main/{number}", "data": each} for number, each in enumerate(data)]
    assert find_by_uid(objects, "u") == "main/2"
    assert find_by_uid(objects, "") == ""
