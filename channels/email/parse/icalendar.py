"""
Summarises a calendar event in a mail (``text/calendar``, RFC 5545) in a few lines: what, when and where.
Pure, linear. It repeats the file's values and computes nothing: a repetition stays a rule, a time zone keeps
the name that the sender gave it. Unreadable values are left out; the file is attached in any case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_LINES = 5_000
_FOLD = re.compile(r"\n[ \t]")
_NAME = re.compile(r"([A-Za-z0-9-]{1,40})((?:;[^:\"]{0,200}(?:\"[^\"]{0,200}\"[^:\"]{0,200}){0,10})?):")
_ZONE = re.compile(r";TZID=\"?([^;:\"]{1,80})", re.IGNORECASE)
_NICK = re.compile(r";CN=\"?([^;:\"]{1,80})", re.IGNORECASE)
_NOTE = re.compile(r";X-RESPONSE-COMMENT=\"?([^\"]{1,200})", re.IGNORECASE)
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(?:\d\d)?(Z)?)?")
_ESCAPED = re.compile(r"\\([\\;,nN])")
_METHODS = {
    "REQUEST": "Invitation",
    "PUBLISH": "Event",
    "CANCEL": "Cancellation",
    "REPLY": "Reply to an invitation",
    "COUNTER": "Proposal of a new time",
    "ADD": "Further dates",
}
_LABELS = {
    "LOCATION": "Where",
    "RRULE": "Repeats",
    "STATUS": "Status",
    "URL": "Link",
    "DESCRIPTION": "Description",
    "COMMENT": "Note",
}


@dataclass(slots=True)
class _Event:
    """Properties of one event: parameters and value by name, the first of each; people apart."""

    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    guests: int = 0


def in_words(source: str) -> str:
    """The events in words; empty if none can be read. Total."""
    method, events = "", list[_Event]()
    open_event: _Event | None = None
    inner = 0
    for name, parameters, value in _properties(source):
        if name == "METHOD":
            method = value.strip().upper()
        elif name == "BEGIN":
            if value.strip().upper() == "VEVENT" and open_event is None and len(events) < 5:
                open_event = _Event()
                events.append(open_event)
            elif open_event is not None:
                inner += 1  # an alarm has a description of its own
        elif name == "END" and open_event is not None:
            if inner:
                inner -= 1
            else:
                open_event = None
        elif open_event is not None and not inner:
            if name == "ATTENDEE":
                open_event.guests += 1
            open_event.known.setdefault(name, (parameters, value))
    label = _METHODS.get(method, "Event")
    return "\n\n".join(_event_text(label, event) for event in events)


def note_of_reply(source: str) -> str | None:
    """The note in a reply to an invitation, or "" without one; None: it is no reply. Total."""
    method = note = ""
    for name, parameters, value in _properties(source):
        if name == "METHOD":
            method = value.strip().upper()
        elif name == "COMMENT":
            note = note or _plain(value)
        elif name == "ATTENDEE" and (found := _NOTE.search(parameters)) is not None:  # Google's way
            note = note or found[1].strip()
    return note if method == "REPLY" else None


def _properties(source: str) -> Iterator[tuple[str, str, str]]:
    text = _FOLD.sub("", source.replace("\r\n", "\n").replace("\r", "\n"))
    for line in text.split("\n", MAX_LINES)[:MAX_LINES]:
        found = _NAME.match(line[:4_000])
        if found is not None:
            yield found[1].upper(), found[2], line[found.end() : found.end() + 1_000]


def _event_text(label: str, event: _Event) -> str:
    title = _plain(event.known.get("SUMMARY", ("", ""))[1]) or "(without a title)"
    lines = [f"[{label}: {title}]"]
    begin, end = _instant(event, "DTSTART"), _instant(event, "DTEND")
    if begin:
        lines.append(f"When: {begin}{f' to {end}' if end else ''}")
    organizer = event.known.get("ORGANIZER")
    if organizer is not None:
        nick = _NICK.search(organizer[0])
        address = re.sub(r"\Amailto:", "", organizer[1].strip(), flags=re.IGNORECASE)
        lines.append(f"Organizer: {nick[1]} <{address}>" if nick else f"Organizer: {address}")
    if event.guests:
        lines.append(f"Invited: {event.guests}")
    lines += [
        f"{said}: {value}"
        for name, said in _LABELS.items()
        if (value := _plain(event.known.get(name, ("", ""))[1]))
    ]
    return "\n".join(lines)


def _instant(event: _Event, name: str) -> str:
    parameters, value = event.known.get(name, ("", ""))
    found = _STAMP.match(value.strip())
    if found is None:
        return ""
    day = f"{found[1]}-{found[2]}-{found[3]}"
    if found[4] is None:
        return day
    zone = _ZONE.search(parameters)
    named = " UTC" if found[6] else f" ({zone[1]})" if zone else ""
    return f"{day} {found[4]}:{found[5]}{named}"


def _plain(value: str) -> str:
    text = _ESCAPED.sub(lambda match: "\n" if match[1] in "nN" else match[1], value)
    return " ".join(text.split())
