"""What is read from calendars, whoever has written it, and what is written there."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from icalendar import Calendar

from agent_core.models import ScopeKind
from agent_core.tools.dav.dav_child import answer, contacts_in, read_xml, responses_in
from agent_core.tools.dav.dav_tools import free_times
from agent_core.tools.dav.events import (
    MAX_OBJECTS,
    Unusable,
    change_event,
    list_occurrences,
    make_event,
    read_moment,
)
from agent_core.tools.dav.plugin import DavTools
from tests.calendar_world import NOW, ZONE, FixedClock, event, session_of, settings_for

BERLIN = ZoneInfo(ZONE)


def listed(*data: str, first: str = "2026-12-01", days: int = 7, words: str = "") -> list[str]:
    begin = datetime.fromisoformat(first).replace(tzinfo=BERLIN)
    objects = [{"id": f"main/{n}", "calendar": "Main", "data": each} for n, each in enumerate(data)]
    found = list_occurrences(objects, begin, begin + timedelta(days=days), BERLIN, words)
    return [f"{each['when']} {each['summary']}{'!' * each['unexpanded']}" for each in found["events"]]


def changed(data: str, occurrence: str = "", *, cancel: bool = False, **fields: str) -> dict[str, object]:
    return change_event(data, fields, occurrence=occurrence, zone=BERLIN, now=NOW, cancel=cancel)


UNEXPANDED = [
    "FREQ=SECONDLY",
    "FREQ=MINUTELY;INTERVAL=1",
    "FREQ=HOURLY",
    "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=31",
    "FREQ=WEEKLY;BYSETPOS=1",
]


@pytest.mark.parametrize(
    "rule",
    [
        *UNEXPANDED,
        "FREQ=DAILY;BYMONTH=13",
        "FREQ=DAILY;INTERVAL=0",
        "FREQ=DAILY;INTERVAL=-1",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=31",
        "RUBBISH",
    ],
)
def test_no_rule_keeps_the_reader_busy(rule: str) -> None:
    """The others are listed all the same; without its guard the fourth takes minutes."""
    bomb = event("x", "DTSTART:20261201T100000Z", f"RRULE:{rule}", summary="Bomb")
    plain = event("y", "DTSTART:20261202T100000Z", "DURATION:PT1H", summary="Plain")
    said = listed(bomb, plain)
    assert "Wed 2026-12-02 11:00-12:00 Plain" in said
    assert len(said) <= 2
    if rule in UNEXPANDED:
        before = listed(bomb, first="2027-01-01")
        assert before == [
            "Tue 2026-12-01 11:00 Bomb!"
        ]  # a server that expands it says that it is in this time


def test_what_began_long_ago_is_not_counted_through() -> None:
    assert len(listed(event("x", "DTSTART:00010101T100000Z", "RRULE:FREQ=DAILY"))) <= 1
    assert len(listed(event("x", "DTSTART:19500101T100000Z", "RRULE:FREQ=DAILY"))) == 7  # the control


def test_a_broken_object_hides_no_other_and_is_counted() -> None:
    begin = datetime(2026, 12, 1, tzinfo=BERLIN)
    objects = [
        {"id": "a", "calendar": "", "data": data}
        for data in ("", "rubbish", event("n"), event("g", "DTSTART:20261202T100000Z"))
    ]
    found = list_occurrences(objects, begin, begin + timedelta(days=7), BERLIN)
    assert [each["summary"] for each in found["events"]] == ["Meeting"]
    assert found["unread"] >= 2


def test_more_than_can_be_read_is_said() -> None:
    many = [{"id": "a", "calendar": "", "data": event("g", summary="Run")}] * (MAX_OBJECTS + 1)
    with pytest.raises(Unusable, match="shorter time"):
        list_occurrences(many, NOW, NOW + timedelta(days=1), BERLIN)
    found = list_occurrences(many, NOW, NOW + timedelta(days=1), BERLIN, "swim")
    assert found == {"events": [], "unread": 0}  # what cannot have the words is not read


def test_a_series_with_exceptions_in_all_forms() -> None:
    start = "DTSTART;TZID=Europe/Berlin:20261201T100000"
    series = event(
        "s",
        start,
        "DURATION:PT1H",
        "RRULE:FREQ=DAILY;COUNT=3",
        "RDATE;TZID=Europe/Berlin:20261206T180000",
        "EXDATE;TZID=Europe/Berlin:20261202T100000",
    )
    assert listed(series) == [
        "Tue 2026-12-01 10:00-11:00 Meeting",
        "Thu 2026-12-03 10:00-11:00 Meeting",
        "Sun 2026-12-06 18:00-19:00 Meeting",
    ]
    days = event("d", "DTSTART;VALUE=DATE:20261130", "RRULE:FREQ=WEEKLY", summary="Bins")
    assert listed(days, days=14) == ["Mon 2026-12-07, all day Bins", "Mon 2026-12-14, all day Bins"]


def test_one_of_a_series_is_changed_and_then_again() -> None:
    series = event(
        "s", "DTSTART;TZID=Europe/Berlin:20261201T100000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2"
    )
    first = changed(series, "2026-12-02 10:00", start="2026-12-02 12:00", location="Café")
    again = changed(str(first["data"]), "2026-12-02 12:00", start="2026-12-02 13:00")
    assert listed(str(again["data"])) == [
        "Tue 2026-12-01 10:00-11:00 Meeting",
        "Wed 2026-12-02 13:00-14:00 Meeting",
    ]
    assert len(Calendar.from_ical(str(again["data"])).walk("VEVENT")) == 2
    assert changed(str(again["data"]), "2026-12-02 12:00", start="2026-12-02 13:00")["same"]
    with pytest.raises(Unusable, match="no occurrence"):
        changed(series, "2026-12-02 11:00", summary="x")


def test_a_series_keeps_its_zone_when_it_is_moved() -> None:
    """At nine in New York, before and after the end of summer time there."""
    series = event(
        "s", "DTSTART;TZID=America/New_York:20261028T090000", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;COUNT=2"
    )
    assert [each[:20] for each in listed(series, first="2026-10-27", days=14)] == [
        "Wed 2026-10-28 14:00",
        "Wed 2026-11-04 15:00",
    ]
    moved = str(changed(series, start="2026-10-28 15:00")["data"])
    assert [each[:20] for each in listed(moved, first="2026-10-27", days=14)] == [
        "Wed 2026-10-28 15:00",
        "Wed 2026-11-04 16:00",
    ]


def test_days_floating_times_and_lengths_stay_what_they_are() -> None:
    floating = event("f", "DTSTART:20261201T100000", "DTEND:20261201T113000")
    moved = str(changed(floating, start="2026-12-02 15:00")["data"])
    assert "DTSTART:20261202T150000\r\n" in moved
    assert listed(moved) == ["Wed 2026-12-02 15:00-16:30 Meeting"]
    days = event("d", "DTSTART;VALUE=DATE:20261201", "DTEND;VALUE=DATE:20261203")
    assert listed(str(changed(days, start="2026-12-05")["data"])) == [
        "Sat 2026-12-05 to Sun 2026-12-06, all day Meeting"
    ]
    timed = str(changed(days, start="2026-12-05 10:00", minutes="30")["data"])
    assert listed(timed) == ["Sat 2026-12-05 10:00-10:30 Meeting"]


def test_what_others_have_stored_with_it_stays() -> None:
    data = event("k", "DTSTART:20261201T100000Z", "X-OTHER:kept", "ATTENDEE:mailto:bob@example.org")
    found = changed(data, summary="New")
    assert "X-OTHER:kept" in str(found["data"])
    assert "SEQUENCE:1" in str(found["data"])
    assert "1 people are invited" in str(found["before"])
    assert changed(str(found["data"]), summary="New")["same"]


@pytest.mark.parametrize(
    "fields",
    [
        {"start": "tomorrow"},
        {"start": "2026-02-30"},
        {"start": "2026-12-01 25:00"},
        {"start": "2026-12-01 10:00", "end": "2026-12-01 09:00"},
        {"start": "2026-12-01", "end": "2026-12-01 09:00"},
        {"start": "2026-12-01 10:00", "repeat": "FREQ=SECONDLY"},
        {"start": "2026-12-01 10:00", "repeat": "every day"},
    ],
)
def test_what_cannot_be_made_is_said(fields: dict[str, str]) -> None:
    with pytest.raises(Unusable):
        make_event({"summary": "x", **fields}, uid="u", zone=BERLIN, now=NOW)


def test_line_breaks_in_a_text_add_no_property() -> None:
    made = make_event(
        {"summary": "a\r\nATTENDEE:mailto:eve@example.org", "start": "2026-12-01 9:00"},
        uid="u",
        zone=BERLIN,
        now=NOW,
    )
    [found] = Calendar.from_ical(made).walk("VEVENT")
    assert "ATTENDEE" not in found


def test_times_are_read_in_the_owners_zone_unless_they_say_another() -> None:
    assert read_moment("2026-12-01 9:05", BERLIN) == datetime(2026, 12, 1, 9, 5, tzinfo=BERLIN)
    assert read_moment("2026-07-01T12:00Z", BERLIN) == datetime(2026, 7, 1, 14, tzinfo=BERLIN)
    assert str(read_moment("2026-12-01", BERLIN)) == "2026-12-01"


def test_free_times_respect_what_overlaps() -> None:
    def busy(start: str, end: str, **more: object) -> dict[str, object]:
        return {
            "start": f"2026-12-01T{start}+01:00",
            "end": f"2026-12-01T{end}+01:00",
            "free": False,
            "status": "",
            **more,
        }

    first, last = (datetime(2026, 12, 1, hour, tzinfo=BERLIN) for hour in (8, 18))
    events = [
        busy("07:00", "12:00"),
        busy("09:00", "10:00"),
        busy("12:20", "13:00"),
        busy("14:00", "15:00", status="CANCELLED"),
        busy("17:00", "19:00"),
    ]
    assert [(a.hour, b.hour) for a, b in free_times(events, first, last, minutes=30)] == [(13, 17)]


def test_xml_with_a_document_type_is_refused() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><a>&c;</a>'
    for body in (
        bomb,
        b"<a>",
        b"",
        b"\xff\xfe",
        b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x"><a/>',
        bomb.decode().encode("utf-16"),
    ):
        with pytest.raises(ValueError, match=r"it (has|is no)"):
            read_xml(body)
    assert read_xml(b"<a><![CDATA[<!DOCTYPE html>]]></a>").text == "<!DOCTYPE html>"  # the control


def test_only_properties_with_a_success_count() -> None:
    body = (
        b'<m xmlns="DAV:"><response><href> /x/ </href><propstat><prop><displayname>A</displayname></prop>'
        b"<status>HTTP/1.1 200 OK</status></propstat><propstat><prop><getetag>no</getetag></prop>"
        b"<status>HTTP/1.1 404 Not Found</status></propstat></response></m>"
    )
    [found] = responses_in(body)
    assert (found["href"], found["props"].keys()) == ("/x/", {"displayname"})


def test_a_broken_card_hides_no_other() -> None:
    cards = [
        {"data": data}
        for data in ("\x00;;\x01:", "BEGIN:VCARD\r\nitem1.EMAIL:b@x.org\r\nFN:Bob\\, Jr.\r\nEND:VCARD")
    ]
    found = contacts_in(iter(cards), "bob")
    assert found["contacts"] == [{"name": "Bob, Jr.", "mail": ["b@x.org"], "phone": []}]


def test_a_request_that_cannot_be_done_is_a_problem_and_no_failure() -> None:
    asked = {"operation": "span", "zone": ZONE, "now": NOW.isoformat(), "first": "soon", "last": "2026-12-01"}
    assert "is no time" in json.loads(answer(asked))["problem"]
    with pytest.raises(ValueError, match="it is no XML"):
        answer({"operation": "responses", "body": b64encode(b"no").decode()})


@pytest.mark.parametrize(
    ("allow", "kind", "name", "has"),
    [
        ("owner", ScopeKind.OWNER, "", True),
        ("owner", ScopeKind.PERSON, "@eve:hs.test", False),
        ("owner", ScopeKind.ROOM, "matrix:!room", False),
        ("people", ScopeKind.PERSON, "@eve:hs.test", True),
        ("people", ScopeKind.ROOM, "matrix:!room", False),
        ("none", ScopeKind.OWNER, "", False),
    ],
)
def test_whose_calendar_it_is(allow: str, kind: ScopeKind, name: str, has: bool) -> None:
    family = DavTools(settings_for("http://127.0.0.1:9/", allow=allow), FixedClock(), ZONE)
    assert bool(family.tools_for(session_of(kind=kind, name=name))) is has
    assert DavTools(None, FixedClock(), ZONE).tools_for(session_of()) == []
