"""
Reads and writes iCalendar: occurrences between two times, and objects as a server is to store them. Runs in
the confined process (`agent_core.tools.dav.dav_child`), because anybody who can send an invitation can write
what is read here. Rules that would take long to expand are not expanded: the object is shown once and marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import recurring_ical_events
from icalendar import Calendar, Component, Event, Todo, vRecur
from icalendar.prop import vDDDTypes

from agent_core.text import one_line

MAX_OBJECTS = 2_000
_TITLE_CHARS, _NOTES_CHARS = 200, 500
_SELDOM, _OFTEN = ("MONTHLY", "YEARLY"), ("DAILY", "WEEKLY")
_PLAIN_PARTS = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", "BYMONTH"}
_OLDEST, _MAX_ALARMS = 1900, 20
_TEXTS = {"summary": "SUMMARY", "location": "LOCATION", "notes": "DESCRIPTION"}
_MASTER_ONLY = ("RRULE", "RDATE", "EXDATE", "EXRULE")
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{1,2}:\d{2}(:\d{2})?)?\s?(Z|[+-]\d{2}:\d{2})?")
Moment = date | datetime


class Unusable(ValueError):
    """A request that cannot be done; the text is for the model."""


def read_moment(text: str, zone: ZoneInfo) -> Moment:
    """A date, or a time (in ``zone`` unless it names an offset). Raises Unusable."""
    text = text.strip()
    day, clock = text[:10], text[11:].replace(" ", "")
    try:
        if len(text) == 10:
            return date.fromisoformat(text)
        written = f"{day}T{clock.zfill(5) if len(clock) == 4 else clock}"
        found = datetime.fromisoformat(written if _STAMP.fullmatch(text) else "")
    except ValueError:
        raise Unusable(f"{text[:40]!r} is no time; write 2026-12-01 or 2026-12-01 09:30.") from None
    return found if found.tzinfo else found.replace(tzinfo=zone)


def as_time(moment: Moment, zone: ZoneInfo) -> datetime:
    """The moment as a time of the zone: the start of a day, and floating times as times there."""
    if not isinstance(moment, datetime):
        return datetime.combine(moment, time(), zone)
    return moment.astimezone(zone) if moment.tzinfo else moment.replace(tzinfo=zone)


def list_occurrences(
    objects: Sequence[Mapping[str, str]], first: datetime, last: datetime, zone: ZoneInfo, words: str = ""
) -> dict[str, Any]:
    """
    Return the occurrences of calendar objects (``id``, ``calendar`` and ``data`` each), the earliest first.

    With ``words`` only those that have all of them in title, place or notes. ``unread`` counts objects that
    no reader understands. Raises Unusable for too many.
    """
    wanted = words.casefold().split()
    chosen = [each for each in objects if _may_have(each["data"], wanted)]
    if len(chosen) > MAX_OBJECTS:
        raise Unusable(f"These are more than {MAX_OBJECTS} appointments; ask for a shorter time.")
    found, unread = [], 0
    for each in chosen:
        try:
            found += list(_occurrences_of(each, first, last, zone))
        except Exception:  # noqa: BLE001 - whatever others have written is no reason to hide the rest
            unread += 1
    texts = [(one, f"{one['summary']} {one['location']} {one['notes']}".casefold()) for one in found]
    hits = [one for one, text in texts if all(word in text for word in wanted)]
    return {"events": sorted(hits, key=lambda one: (one["start"], one["end"])), "unread": unread}


def _may_have(data: str, words: Sequence[str]) -> bool:
    """Return False if an object has not all words: reading it takes long. Other letters may be encoded."""
    text = re.sub(r"\r?\n[ \t]", "", data).casefold() if words else ""
    return all(word in text for word in words if word.isascii() and word.isalnum())


def _occurrences_of(
    each: Mapping[str, str], first: datetime, last: datetime, zone: ZoneInfo
) -> Iterator[dict[str, Any]]:
    calendar = Calendar.from_ical(each["data"])
    series = [event for event in calendar.walk("VEVENT") if "RRULE" in event]
    endless = [event for event in series if not all(map(_is_quick, _rules(event)))]
    for event in endless:
        for name in _MASTER_ONLY:
            event.pop(name, None)
    repeats = bool(series) or any("RDATE" in event for event in calendar.walk("VEVENT"))
    found = recurring_ical_events.of(calendar, skip_bad_series=True).between(first, last)
    for event in found or endless:
        start, end = event.start, event.end
        yield {
            "id": each["id"],
            "calendar": each["calendar"],
            "summary": text_of(event, "SUMMARY", _TITLE_CHARS) or "(no title)",
            "location": text_of(event, "LOCATION", _TITLE_CHARS),
            "notes": text_of(event, "DESCRIPTION", _NOTES_CHARS),
            "status": text_of(event, "STATUS", 20).upper(),
            "start": as_time(start, zone).isoformat(),
            "end": as_time(end, zone).isoformat(),
            "when": span_in_words(start, end, zone),
            "free": text_of(event, "TRANSP", 20).upper() == "TRANSPARENT",
            "repeats": repeats,
            "unexpanded": bool(endless),
            "uid": text_of(event, "UID", 500),
            "alarms": _alarms(event, zone),
            "people": [text_of({"X": who}, "X", 100).removeprefix("mailto:") for who in attendees_of(event)][
                :10
            ],
        }


def _alarms(event: Component, zone: ZoneInfo) -> list[str]:
    """Return the times of its alarms; alarms that nobody can read are left out."""
    for alarm in event.walk("VALARM"):
        alarm.pop("REPEAT", None)
    try:
        return [as_time(each.trigger, zone).isoformat() for each in event.alarms.times][:_MAX_ALARMS]
    except Exception:  # noqa: BLE001 - whatever others have written, the appointment is shown
        return []


def list_reminders(
    objects: Sequence[Mapping[str, str]], first: datetime, last: datetime, until: datetime, zone: ZoneInfo
) -> list[dict[str, str]]:
    """
    Return what to tell of the occurrences between ``first`` and ``last``, the earliest first.

    Told is what has an alarm until ``until`` or, without alarms, begins until then, unless it takes no time
    or all day. Each has ``key``, which names the occurrence, ``at``, the newest of these moments, ``when``,
    ``summary`` and ``location``. Raises Unusable.
    """
    found = []
    for each in list_occurrences(objects, first, last, zone)["events"]:
        start = datetime.fromisoformat(each["start"])
        moments = [datetime.fromisoformat(alarm) for alarm in each["alarms"]]
        if not moments and not each["free"] and "all day" not in each["when"]:
            moments = [start]
        at = max((moment for moment in moments if moment <= until), default=None)
        if at is None or max(at, start) < first or each["status"] == "CANCELLED" or each["unexpanded"]:
            continue
        told = {name: each[name] for name in ("when", "summary", "location")}
        found.append(told | {"key": f"{each['uid']} {each['start']}", "at": at.isoformat()})
    return found


def _is_quick(rule: vRecur) -> bool:
    """Return True if a rule is expanded in a moment, whoever has written it."""
    frequency = str(rule.get("FREQ", [""])[0]).upper()
    months = [int(str(month)) for month in rule.get("BYMONTH", ())]
    intervals = [int(number) for number in rule.get("INTERVAL", ())]
    if not all(1 <= month <= 12 for month in months) or min(intervals, default=1) < 1:
        return False
    return frequency in _SELDOM or (frequency in _OFTEN and rule.keys() <= _PLAIN_PARTS)


def _rules(event: Component) -> list[vRecur]:
    found = event.get("RRULE", [])
    rules: list[vRecur] = found if isinstance(found, list) else [found]
    start = event.start
    return rules if start.year >= _OLDEST else [vRecur({"FREQ": ["SECONDLY"]})]


def attendees_of(event: Component) -> list[Any]:
    """The people who are invited, as the library has them."""
    found = event.get("ATTENDEE", [])
    return found if isinstance(found, list) else [found]


def text_of(component: Mapping[str, Any], name: str, chars: int) -> str:
    """A property on one line, of so many characters at most; empty if there is none."""
    return one_line(str(component.get(name, "")), chars)


# ── what is written ──


def make_event(fields: Mapping[str, Any], *, uid: str, zone: ZoneInfo, now: datetime) -> str:
    """A new appointment as a server stores it. Raises Unusable."""
    event = Event()
    event.add("uid", uid)
    event.add("dtstamp", now)
    start, end = _span(fields, zone)
    event.add("dtstart", start)
    event.add("dtend", end)
    if rule := str(fields.get("repeat") or ""):
        event.add("rrule", _read_rule(rule))
    _set_texts(event, fields)
    return _whole(event)


def _span(fields: Mapping[str, Any], zone: ZoneInfo) -> tuple[Moment, Moment]:
    """Start and end (exclusive, also of days) of the fields. Raises Unusable."""
    start = read_moment(str(fields.get("start") or ""), zone)
    days = not isinstance(start, datetime)
    end: Moment
    if fields.get("end"):
        end = read_moment(str(fields["end"]), zone)
        if days is isinstance(end, datetime):
            raise Unusable("Start and end must both be days, or both times.")
        end += timedelta(days=1) if days else timedelta()
    else:
        end = start + (timedelta(days=1) if days else timedelta(minutes=float(fields.get("minutes") or 60)))
    if as_time(end, zone) <= as_time(start, zone):
        raise Unusable("The end must come after the start.")
    return start, end


def _read_rule(text: str) -> vRecur:
    try:
        rule = vRecur.from_ical(text.removeprefix("RRULE:"))
        if _is_quick(rule):
            return rule
    except Exception:  # noqa: BLE001, S110 - the library raises many
        pass
    raise Unusable(f"{text[:60]!r} is no rule that can be kept; write such as FREQ=WEEKLY;BYDAY=MO.")


def _set_texts(component: Component, fields: Mapping[str, Any]) -> None:
    for name, key in _TEXTS.items():
        if fields.get(name) is not None:
            component.pop(key, None)
            if fields[name]:
                component.add(key, str(fields[name]))


def _whole(component: Component) -> str:
    calendar = Calendar()
    calendar.add("prodid", "-//squidbot//EN")
    calendar.add("version", "2.0")
    calendar.add_component(component)
    return serialise(calendar)


def serialise(calendar: Calendar) -> str:
    """A calendar as a server stores it, with the time zones that it names."""
    calendar.add_missing_timezones()
    return str(calendar.to_ical().decode())


def change_event(
    data: str,
    fields: Mapping[str, Any],
    *,
    occurrence: str,
    zone: ZoneInfo,
    now: datetime,
    cancel: bool = False,
) -> dict[str, Any]:
    """
    Apply a change, or ``cancel``, to an appointment or the occurrence that starts at ``occurrence``.

    Returns ``data`` ("": delete the whole object), ``before`` and ``after`` in words, and ``same``: the
    object is so already. Raises Unusable.
    """
    calendar = Calendar.from_ical(data)
    masters = [event for event in calendar.walk("VEVENT") if "RECURRENCE-ID" not in event]
    master = masters[0] if masters else None
    repeats = master is not None and any(name in master for name in ("RRULE", "RDATE"))
    if not occurrence or not repeats:
        target = master or next(iter(calendar.walk("VEVENT")), None)
        if target is None:
            raise Unusable("This is no appointment.")
        if cancel:
            whole = " (all of the series)" if repeats else ""
            return {"data": "", "before": _in_words(target, zone) + whole, "after": "", "same": False}
    else:
        assert master is not None
        found = find_occurrence(calendar, read_moment(occurrence, zone), zone)
        if found is None:
            if cancel:
                return {"data": data, "before": "", "after": "", "same": True}
            target = _override(calendar, master, fields, zone)
        elif cancel:
            return _without(calendar, master, found, zone)
        else:
            target = _own_component(calendar, found)
    before = target.to_ical(), _in_words(target, zone)
    apply_fields(target, fields, zone, moves_series=target is master and repeats)
    same = target.to_ical() == before[0]
    if not same:
        _stamp(target, now)
    told = {"data": serialise(calendar), "before": before[1], "after": _in_words(target, zone)}
    return told | {"same": same, "span": _times_of(target, zone)}


def _times_of(event: Component, zone: ZoneInfo) -> list[str]:
    """Start and end; none of days, beside which there may be more."""
    at_once = isinstance(event.start, datetime)
    return [as_time(each, zone).isoformat() for each in (event.start, event.end)] if at_once else []


def apply_fields(target: Component, fields: Mapping[str, Any], zone: ZoneInfo, *, moves_series: bool) -> None:
    """Set what the fields name; without an end the length stays. Raises Unusable."""
    _set_texts(target, fields)
    if not any(fields.get(name) for name in ("start", "end", "minutes")):
        return
    old_start, old_end = target.start, target.end
    given = dict(fields)
    if not given.get("start"):
        given["start"] = _written(old_start, zone)
    if not given.get("end") and not given.get("minutes"):
        length = as_time(old_end, zone) - as_time(old_start, zone)
        day = len(str(given["start"]).strip()) == 10
        given["minutes"] = 60 if day or not isinstance(old_start, datetime) else length.total_seconds() / 60
        if day and not isinstance(old_start, datetime):
            last = read_moment(str(given["start"]), zone) + (old_end - old_start) - timedelta(days=1)
            given["end"] = last.isoformat()
    start, end = _span(given, zone)
    if as_time(start, zone) == as_time(old_start, zone) and as_time(end, zone) == as_time(old_end, zone):
        return
    if moves_series and as_time(start, zone) != as_time(old_start, zone) and "EXDATE" in target:
        raise Unusable(
            "This series has exceptions; change single occurrences, or cancel it and make another."
        )
    target.pop("DURATION", None)
    for name, new in (("DTSTART", start), ("DTEND", end)):
        target.pop(name, None)
        target.add(name, _in_its_zone(new, old_start, zone))


def _in_its_zone(new: Moment, old: Moment, zone: ZoneInfo) -> Moment:
    """The moment in the zone of an earlier one, so that a series keeps its summer time; or floating."""
    if not isinstance(new, datetime) or not isinstance(old, datetime):
        return new
    return new.astimezone(old.tzinfo) if old.tzinfo else new.astimezone(zone).replace(tzinfo=None)


def _written(moment: Moment, zone: ZoneInfo) -> str:
    if not isinstance(moment, datetime):
        return moment.isoformat()
    return as_time(moment, zone).isoformat()


def find_occurrence(calendar: Calendar, start: Moment, zone: ZoneInfo) -> Component | None:
    """The occurrence of a series that starts then, as a component of its own. Raises Unusable."""
    at = as_time(start, zone)
    if not all(_is_quick(rule) for event in calendar.walk("VEVENT") for rule in _rules(event)):
        raise Unusable("This series repeats too often to change one occurrence.")
    near = recurring_ical_events.of(calendar).between(at, at + timedelta(minutes=1))
    for found in near:
        if as_time(found.start, zone) == at:
            for name in _MASTER_ONLY:
                found.pop(name, None)
            return found
    return None


def _override(calendar: Calendar, master: Component, fields: Mapping[str, Any], zone: ZoneInfo) -> Component:
    """The exception that has been moved to where this change moves it. Raises Unusable: there is none."""
    moved = str(fields.get("start") or "")
    found = find_occurrence(calendar, read_moment(moved, zone), zone) if moved else None
    target = None if found is None else _own_component(calendar, found)
    if target is None or target is master:
        raise Unusable("This series has no occurrence at that time; list it again.")
    return target


def _own_component(calendar: Calendar, found: Component) -> Component:
    """The stored exception of an occurrence, added if there is none yet."""
    at = found["RECURRENCE-ID"].dt
    for event in calendar.walk("VEVENT"):
        if "RECURRENCE-ID" in event and event["RECURRENCE-ID"].dt == at:
            return event
    calendar.add_component(found)
    return found


def _without(calendar: Calendar, master: Component, found: Component, zone: ZoneInfo) -> dict[str, Any]:
    at: vDDDTypes = found["RECURRENCE-ID"]
    kept = [each for each in calendar.subcomponents if not _is_at(each, at)]
    calendar.subcomponents = kept
    master.add("exdate", at.dt)
    return {"data": serialise(calendar), "before": _in_words(found, zone), "after": "", "same": False}


def _is_at(component: Component, at: vDDDTypes) -> bool:
    return "RECURRENCE-ID" in component and bool(component["RECURRENCE-ID"].dt == at.dt)


def _stamp(component: Component, now: datetime) -> None:
    # Of what somebody else organizes, the number is theirs: their next version has to be newer.
    is_theirs = "SCHEDULE-AGENT" in getattr(component.get("ORGANIZER"), "params", ())
    number = int(component.get("SEQUENCE", 0)) + (not is_theirs)
    for name, value in (("DTSTAMP", now), ("LAST-MODIFIED", now), ("SEQUENCE", number)):
        component.pop(name, None)
        component.add(name, value)


def in_words(component: Component, zone: ZoneInfo) -> str:
    """A short text of an appointment, for the person who approves a change."""
    lines = [text_of(component, "SUMMARY", _TITLE_CHARS), span_in_words(component.start, component.end, zone)]
    lines += [text_of(component, name, _NOTES_CHARS) for name in ("LOCATION", "DESCRIPTION")]
    return "\n".join(line for line in lines if line)


def _in_words(component: Component, zone: ZoneInfo) -> str:
    people = len(attendees_of(component))
    told = f"\n{people} people are invited; the server may write to them" if people else ""
    return in_words(component, zone) + told


def span_in_words(start: Moment, end: Moment, zone: ZoneInfo) -> str:
    """A span such as ``Tue 2026-12-01 09:30-10:30``; of days, the last one included."""
    if not isinstance(start, datetime):
        last = max(start, end - timedelta(days=1))
        return f"{start:%a %Y-%m-%d}" + (f" to {last:%a %Y-%m-%d}" if last > start else "") + ", all day"
    first, until = as_time(start, zone), as_time(end, zone)
    behind = f"{until:%H:%M}" if until.date() == first.date() else f" to {until:%a %Y-%m-%d %H:%M}"
    return f"{first:%a %Y-%m-%d %H:%M}" + (
        "" if until == first else f"{'' if behind[0] == ' ' else '-'}{behind}"
    )


# ── tasks ──


def list_tasks(objects: Iterable[Mapping[str, str]], zone: ZoneInfo) -> dict[str, Any]:
    """The open tasks of objects as in `list_occurrences`, those that are due first in front."""
    found, unread = [], 0
    for each in list(objects)[:MAX_OBJECTS]:
        try:
            for task in Calendar.from_ical(each["data"]).walk("VTODO"):
                if text_of(task, "STATUS", 20).upper() in ("COMPLETED", "CANCELLED") or "COMPLETED" in task:
                    continue
                due = task["DUE"].dt if "DUE" in task else None
                told = "" if due is None else _written(due, zone)[:16].replace("T", " ")
                found.append(
                    {
                        "id": each["id"],
                        "summary": text_of(task, "SUMMARY", _TITLE_CHARS) or "(no title)",
                        "notes": text_of(task, "DESCRIPTION", _NOTES_CHARS),
                        "due": told,
                    }
                )
        except Exception:  # noqa: BLE001 - as in `list_occurrences`
            unread += 1
    return {"tasks": sorted(found, key=lambda one: (one["due"] or "9", one["summary"])), "unread": unread}


def make_task(fields: Mapping[str, Any], *, uid: str, zone: ZoneInfo, now: datetime) -> str:
    """A new task as a server stores it. Raises Unusable."""
    task = Todo()
    task.add("uid", uid)
    task.add("dtstamp", now)
    task.add("status", "NEEDS-ACTION")
    if fields.get("due"):
        task.add("due", read_moment(str(fields["due"]), zone))
    _set_texts(task, fields)
    return _whole(task)


def finish_task(data: str, *, now: datetime) -> dict[str, Any]:
    """Mark a task as done; see `change_event` for what is returned."""
    calendar = Calendar.from_ical(data)
    task = next(iter(calendar.walk("VTODO")), None)
    if task is None:
        raise Unusable("This is no task.")
    if "RRULE" in task:
        raise Unusable("A task that repeats cannot be finished from here.")
    before = text_of(task, "SUMMARY", _TITLE_CHARS)
    same = text_of(task, "STATUS", 20).upper() == "COMPLETED"
    if not same:
        for name, value in (("STATUS", "COMPLETED"), ("COMPLETED", now), ("PERCENT-COMPLETE", 100)):
            task.pop(name, None)
            task.add(name, value)
        _stamp(task, now)
    return {"data": serialise(calendar), "before": before, "after": before, "same": same}


def show_object(data: str, zone: ZoneInfo) -> dict[str, Any]:
    """A new object in words, as ``after``, and start and end of an appointment, as ``span``."""
    calendar = Calendar.from_ical(data)
    task = next(iter(calendar.walk("VTODO")), None)
    if task is None:
        event = calendar.walk("VEVENT")[0]
        rule = event["RRULE"].to_ical().decode() if "RRULE" in event else ""
        told = "\n".join(filter(None, (_in_words(event, zone), rule)))
        return {"after": told, "span": _times_of(event, zone)}
    due = f"due {_written(task['DUE'].dt, zone)[:16]}" if "DUE" in task else ""
    return {"after": "\n".join(filter(None, (text_of(task, "SUMMARY", _TITLE_CHARS), due)))}
