"""
Reads invitations that came as a file (iTIP, RFC 5546), puts them into what the calendar has of the same
appointment, and writes the reply, or a proposal of another time, for the organizer. Runs in the confined
process, like `agent_core.tools.dav.events`: anybody may have written an invitation, so what it says of its
organizer proves nothing, and only a later version by the same organizer replaces what is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from icalendar import Calendar, Component, Event, vCalAddress

from agent_core.text import one_line
from agent_core.tools.dav.events import (
    Unusable,
    apply_fields,
    as_time,
    attendees_of,
    find_occurrence,
    in_words,
    read_moment,
    serialise,
    span_in_words,
    text_of,
)

_MAX_PARTS, _MAX_REPLY_CHARS = 50, 50_000
_STATES = {"accept": "ACCEPTED", "decline": "DECLINED", "tentative": "TENTATIVE", "propose": "TENTATIVE"}
_MAIL = re.compile(r"[\w.!#$&'*+/=^`{|}~-]{1,64}@[a-z0-9.-]{1,190}", re.ASCII)
_ANSWERED = ("UID", "RECURRENCE-ID", "SEQUENCE", "ORGANIZER", "DTSTART", "DTEND", "DURATION")
_SERIES = ("DTSTART", "RRULE", "RDATE", "EXDATE")
_NOT_FOR_US = "This is a {method} message of a calendar and no invitation; there is nothing to answer."
_NO_COUNTER = (
    "No other time can be proposed: {why}. It can be accepted or declined, or the owner writes to them."
)
_KEPT = (
    "The organizer does not take the other time that was proposed; the appointment stays as it was:\n{there}"
)
_NOT_THERE = "(the calendar does not have it)"
UNREADABLE = "This file cannot be read as an invitation."
_OTHER_ORGANIZER = (
    "The calendar has this appointment from another organizer ({there}), so nothing was done. Tell the "
    "owner: the file, which names {said}, may be forged."
)


def uid_in(data: str) -> str:
    """The UID of the one appointment that a file is about. Raises Unusable."""
    return _read(data)[1]


def find_by_uid(objects: Iterable[Mapping[str, str]], uid: str) -> str:
    """The id of the first of the objects that has this UID; empty: there is none."""
    for each in objects:
        try:
            found = Calendar.from_ical(each["data"]).walk("VEVENT")
        except ValueError:
            continue
        if any(str(event.get("UID")) == uid for event in found):
            return each["id"]
    return ""


def answer_invitation(
    data: str,
    stored: str,
    answer: str,
    *,
    mine: Sequence[str],
    sent_by: str,
    zone: ZoneInfo,
    now: datetime,
    times: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """
    Answer an invitation, take over an update or a cancellation of it, or read what became of a proposal.

    Args:
        stored: The object that the calendar has with this UID; empty: none.
        answer: ``accept``, ``decline``, ``tentative`` or ``propose``: tentative, and the organizer is asked
            for another time; of no account for a cancellation.
        mine: The addresses of who answers, the usual one first.
        sent_by: The address that the reply comes from.
        times: ``start``, perhaps ``end``, and of a series the start of the ``occurrence`` to be moved.

    Returns:
        ``data`` as it is to be stored (empty: nothing is to be), ``same``: it is so already, ``before`` and
        ``after`` in words, ``reply`` for ``organizer`` (empty: none is due), ``title``, ``attendee``,
        and ``proposed``: the other time in words.

    Raises:
        Unusable: There is nothing to answer, it is out of date or by another organizer, or unreadable; or
            no other time can be proposed, or one was declined.
    """
    came, uid = _read(data)
    there = Calendar.from_ical(stored) if stored else None
    method = text_of(came, "METHOD", 20).upper() or "PUBLISH"
    if method not in ("REQUEST", "PUBLISH", "CANCEL", "DECLINECOUNTER"):
        raise Unusable(_NOT_FOR_US.format(method=method))
    events = came.walk("VEVENT")
    _check(events, there)
    told = _parties(events, mine) | {"uid": uid, "reply": "", "proposed": ""}
    told["before"] = "\n".join(in_words(each, zone) for each in _shown(there, events))
    attendee = told["attendee"]
    was = None if there is None else _gist(there, attendee)
    if method == "DECLINECOUNTER":
        raise Unusable(_KEPT.format(there=told["before"] or _NOT_THERE))
    state = _STATES[answer]
    about = came if answer != "propose" else _moved(came, (times or {}).get("occurrence", ""), zone)
    if method == "REQUEST" and attendee and told["organizer"]:
        told["reply"] = _reply(about, attendee, state, sent_by=sent_by, now=now)
    if answer == "propose":
        parts = about.walk("VEVENT")
        told["reply"], told["proposed"] = _counter(told["reply"], parts, times or {}, zone=zone, now=now)
        state = "ACCEPTED" if about is not came and _has_accepted(there, attendee) else state
    if there is None and (method == "CANCEL" or state == "DECLINED"):
        return told | {"data": "", "after": in_words(events[0], zone), "same": True}
    if there is not None and method == "CANCEL":
        new = _cancelled(there, events)
    else:
        new = _merged(there, came, attendee, state)
    after = "\n".join(in_words(each, zone) + _mark(each) for each in _shown(new, events))
    return told | {"data": serialise(new), "after": after, "same": was == _gist(new, attendee)}


def _read(data: str) -> tuple[Calendar, str]:
    try:
        calendar = Calendar.from_ical(data)
        events = calendar.walk("VEVENT")
        assert isinstance(calendar, Calendar)
        if text_of(calendar, "METHOD", 20).upper() != "DECLINECOUNTER":  # which may have no times
            assert all(each.start and each.end for each in events)
        uids = {str(each.get("UID") or "") for each in events}
    except Exception:  # noqa: BLE001 - whatever others have written
        raise Unusable(UNREADABLE) from None
    if not events or "" in uids:
        raise Unusable(UNREADABLE)
    if len(uids) > 1 or len(events) > _MAX_PARTS:
        raise Unusable("This file has several appointments; only an invitation to one can be answered.")
    return calendar, uids.pop()


def _check(events: Sequence[Component], there: Calendar | None) -> None:
    """Raise Unusable unless it may replace what is there."""
    organizers = {_who(each.get("ORGANIZER")) for each in events}
    if len(organizers) > 1:
        raise Unusable(UNREADABLE)
    known = {} if there is None else {_at(each): each for each in there.walk("VEVENT")}
    for each in known.values():
        if _who(each.get("ORGANIZER")) not in organizers:
            there_by, said = _who(each.get("ORGANIZER")) or "yourself", organizers.pop() or "nobody"
            raise Unusable(_OTHER_ORGANIZER.format(there=there_by[:100], said=said[:100]))
    for each in events:
        if _at(each) in known and _number(each) < _number(known[_at(each)]):
            raise Unusable("The calendar has a newer version of this appointment, so nothing was done.")


def _who(person: Any) -> str:
    """An organizer or attendee as it is compared; an address of mail without ``mailto:``."""
    return str(person or "").strip().casefold().removeprefix("mailto:")


def _parties(events: Sequence[Component], mine: Sequence[str]) -> dict[str, Any]:
    """``title``, and who answers whom: ``attendee`` and ``organizer``; empty: nobody that can be told."""
    organizer = _who(events[0].get("ORGANIZER"))
    others = () if organizer in mine else mine  # nobody replies to themselves
    invited = {_who(each) for event in events for each in attendees_of(event)}
    return {
        "title": text_of(events[0], "SUMMARY", 100),
        "organizer": organizer if _MAIL.fullmatch(organizer) else "",
        "attendee": next((who for who in others if who in invited), ""),
    }


def _at(event: Component) -> str:
    """The occurrence that a component is about; empty: the appointment or all of the series."""
    return event["RECURRENCE-ID"].dt.isoformat() if "RECURRENCE-ID" in event else ""


def _number(event: Component) -> int:
    return int(event.get("SEQUENCE", 0))


def _shown(calendar: Calendar | None, about: Sequence[Component]) -> list[Component]:
    """The components that are shown: those that the message is about, three at most."""
    wanted = {_at(each) for each in about}
    found = [] if calendar is None else calendar.walk("VEVENT")
    return ([each for each in found if _at(each) in wanted] or found)[:3]


def _mark(event: Component) -> str:
    rule = f"\nrepeats: {event['RRULE'].to_ical().decode()}" if "RRULE" in event else ""
    return rule + ("\n(cancelled)" if text_of(event, "STATUS", 20).upper() == "CANCELLED" else "")


def _gist(calendar: Calendar, attendee: str) -> set[tuple[str, ...]]:
    """A calendar as far as it is compared; servers write the rest in their own ways."""
    return {
        (
            _at(each),
            str(_number(each)),
            each.start.isoformat(),
            each.end.isoformat(),
            *(text_of(each, name, 2_000) for name in ("SUMMARY", "LOCATION", "DESCRIPTION", "STATUS")),
            each["RRULE"].to_ical().decode() if "RRULE" in each else "",
            *(str(who.params.get("PARTSTAT")) for who in attendees_of(each) if _who(who) == attendee),
        )
        for each in calendar.walk("VEVENT")
    }


def _new(timezones: Iterable[Component], events: Iterable[Component], **more: str) -> Calendar:
    calendar = Calendar()
    calendar.add("prodid", "-//squidbot//EN")
    calendar.add("version", "2.0")
    for name, value in more.items():
        calendar.add(name, value)
    zones = {str(each.get("TZID")): each for each in timezones}
    for each in (*zones.values(), *events):
        calendar.add_component(each)
    return calendar


def _zones(calendar: Calendar | None) -> list[Component]:
    return [] if calendar is None else calendar.walk("VTIMEZONE")


def _merged(there: Calendar | None, came: Calendar, attendee: str, state: str) -> Calendar:
    """Return what to store: the parts that came, with the answer, in place of those that are there."""
    known = {} if there is None else {_at(each): each for each in there.walk("VEVENT")}
    for event in came.walk("VEVENT"):
        before = known.get(_at(event))
        # Alarms are for each to set: those of others may send mail, too.
        alarms = [] if before is None else before.walk("VALARM")
        event.subcomponents = alarms
        for each in attendees_of(event):
            if _who(each) == attendee:
                each.params["PARTSTAT"] = state
                each.params.pop("RSVP", None)
        if attendee and "ORGANIZER" in event:
            event["ORGANIZER"].params["SCHEDULE-AGENT"] = "CLIENT"  # so that no server replies as well
        if state == "DECLINED":
            event.pop("TRANSP", None)
            event.add("transp", "TRANSPARENT")
        if not _at(event) and before is not None and _series(before) != _series(event):
            known = {}  # exceptions of a series that is another one now
        known[_at(event)] = event
    return _new([*_zones(there), *_zones(came)], known.values())


def _series(event: Component) -> list[str]:
    return [str(event[name].to_ical()) for name in _SERIES if name in event and name != "EXDATE"]


def _cancelled(there: Calendar, events: Sequence[Component]) -> Calendar:
    """Return what is there marked as cancelled: all of it, or the occurrences that the message names."""
    whole = any(not _at(each) for each in events)
    known = {_at(each): each for each in there.walk("VEVENT")}
    for event in events:
        if not whole and _at(event) not in known:
            event.subcomponents = []
            there.add_component(event)
            known[_at(event)] = event
    ended = known.values() if whole else [known[_at(each)] for each in events]
    number = max(_number(each) for each in events)
    for each in ended:
        for name, value in (("STATUS", "CANCELLED"), ("SEQUENCE", max(number, _number(each)))):
            each.pop(name, None)
            each.add(name, value)
    return _new(_zones(there), there.walk("VEVENT"))


def _reply(came: Calendar, attendee: str, state: str, *, sent_by: str, now: datetime) -> str:
    """The reply for the organizer, about each part that was sent. Raises Unusable: it is too long."""
    answered = []
    for event in came.walk("VEVENT"):
        asked = next((each for each in attendees_of(event) if _who(each) == attendee), None)
        if asked is None:
            continue
        who = vCalAddress(f"mailto:{attendee}")
        who.params["PARTSTAT"] = state
        if "CN" in asked.params:
            who.params["CN"] = one_line(str(asked.params["CN"]), 100)
        if attendee != sent_by:
            who.params["SENT-BY"] = f"mailto:{sent_by}"
        said = Event()
        for name in _ANSWERED:
            if name in event:
                said[name] = event[name]
        said.add("attendee", who)
        said.add("dtstamp", now)
        said.add("summary", text_of(event, "SUMMARY", 200))
        answered.append(said)
    text = str(_new(_zones(came), answered, method="REPLY").to_ical().decode())
    if len(text) > _MAX_REPLY_CHARS:
        raise Unusable(UNREADABLE)
    return text


def _moved(came: Calendar, occurrence: str, zone: ZoneInfo) -> Calendar:
    """Return what another time is proposed for: what came, or one of a series. Raises Unusable."""
    if not any(name in event for event in came.walk("VEVENT") for name in ("RRULE", "RDATE")):
        return came
    if not occurrence:
        raise Unusable(
            _NO_COUNTER.format(why="this is a series; say which of its times in 'occurrence', by its start")
        )
    found = find_occurrence(came, read_moment(occurrence, zone), zone)
    if found is None:
        raise Unusable(_NO_COUNTER.format(why="the series has nothing at that time"))
    return _new(_zones(came), [found])


def _has_accepted(calendar: Calendar | None, attendee: str) -> bool:
    whole = [] if calendar is None else [each for each in calendar.walk("VEVENT") if not _at(each)]
    return any(
        _who(who) == attendee and who.params.get("PARTSTAT") == "ACCEPTED"
        for each in whole
        for who in attendees_of(each)
    )


def _counter(
    reply: str, events: Sequence[Component], times: Mapping[str, str], *, zone: ZoneInfo, now: datetime
) -> tuple[str, str]:
    """Return a reply as a proposal of another time, and that time in words. Raises Unusable."""
    if not reply:
        raise Unusable(_NO_COUNTER.format(why="nobody asks the owner for an answer"))
    if len(events) > 1:
        raise Unusable(_NO_COUNTER.format(why="this file is about several times"))
    if text_of(events[0], "X-MICROSOFT-DISALLOW-COUNTER", 5).upper() == "TRUE":
        raise Unusable(_NO_COUNTER.format(why="the organizer wants no proposals"))
    if not times.get("start"):
        raise Unusable("Give 'start', and 'end' if it takes another time than now.")
    calendar = Calendar.from_ical(reply)
    (asked,) = calendar.walk("VEVENT")
    was = asked.start, asked.end
    apply_fields(asked, times, zone, moves_series=False)
    if (asked.start, asked.end) == was:
        raise Unusable("That is the time that it has already.")
    if as_time(asked.end, zone) <= now:
        raise Unusable("That time is over.")
    if "LOCATION" in events[0]:
        asked["LOCATION"] = events[0]["LOCATION"]
    calendar["METHOD"] = "COUNTER"
    calendar.add_missing_timezones()
    span = span_in_words(asked.start, asked.end, zone)
    if "RECURRENCE-ID" in asked:
        span = f"{span_in_words(*was, zone)} → {span}"
    return calendar.to_ical().decode(), span
