"""Invitations as Outlook, Google Calendar and iCloud write them, and the mails in which people pass them on."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from email.utils import format_datetime, make_msgid

from tests.calendar_world import NOW

OUTLOOK_UID = "040000008200E00074C5B7101A82E00800000000D0B6A1C3F2E4DC010000000000000000100000005A6B7C8D9EAFB0C1D2E3F405162738495"
_OUTLOOK_ZONE = (
    "BEGIN:VTIMEZONE",
    "TZID:W. Europe Standard Time",
    "BEGIN:STANDARD",
    "DTSTART:16010101T030000",
    "TZOFFSETFROM:+0200",
    "TZOFFSETTO:+0100",
    "RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=-1SU;BYMONTH=10",
    "END:STANDARD",
    "BEGIN:DAYLIGHT",
    "DTSTART:16010101T020000",
    "TZOFFSETFROM:+0100",
    "TZOFFSETTO:+0200",
    "RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=-1SU;BYMONTH=3",
    "END:DAYLIGHT",
    "END:VTIMEZONE",
)


def folded(lines: Sequence[str]) -> str:
    """The lines as they are sent: 75 characters at most, the rest below."""
    told = []
    for line in lines:
        told.append(line[:75])
        told += [f" {line[at : at + 74]}" for at in range(75, len(line), 74)]
    return "\r\n".join(told) + "\r\n"


def outlook(
    organizer: str,
    guests: Sequence[str],
    *,
    method: str = "REQUEST",
    number: int = 0,
    start: str = "20261202T100000",
    more: Sequence[str] = (),
) -> str:
    """Exchange writes capitals, a zone of its own, and an alarm; the UID is folded."""
    zone = "TZID=W. Europe Standard Time"
    return folded(
        [
            "BEGIN:VCALENDAR",
            f"METHOD:{method}",
            "PRODID:Microsoft Exchange Server 2010",
            "VERSION:2.0",
            *_OUTLOOK_ZONE,
            "BEGIN:VEVENT",
            f"ORGANIZER;CN=Bob Boss:MAILTO:{organizer}",
            *(
                f"ATTENDEE;ROLE=REQ-PARTICIPANT;PARTSTAT=NEEDS-ACTION;RSVP=TRUE;CN={each}:MAILTO:{each}"
                for each in guests
            ),
            "DESCRIPTION;LANGUAGE=de-DE:Bitte vorbereiten\\, danke.\\n",
            f"UID:{OUTLOOK_UID}",
            "SUMMARY;LANGUAGE=de-DE:Planung Q1",
            f"DTSTART;{zone}:{start}",
            f"DTEND;{zone}:{start[:9]}{int(start[9:11]) + 1:02}{start[11:]}",
            "CLASS:PUBLIC",
            "PRIORITY:5",
            "DTSTAMP:20261129T120000Z",
            "TRANSP:OPAQUE",
            "STATUS:CANCELLED" if method == "CANCEL" else "STATUS:CONFIRMED",
            f"SEQUENCE:{number}",
            "LOCATION;LANGUAGE=de-DE:Raum 5",
            *more,
            f"X-MICROSOFT-CDO-APPT-SEQUENCE:{number}",
            "X-MICROSOFT-CDO-BUSYSTATUS:TENTATIVE",
            "X-MICROSOFT-DISALLOW-COUNTER:FALSE",
            "BEGIN:VALARM",
            "DESCRIPTION:REMINDER",
            "TRIGGER;RELATED=START:-PT15M",
            "ACTION:DISPLAY",
            "END:VALARM",
            "END:VEVENT",
            "END:VCALENDAR",
        ]
    )


def google(organizer: str, guests: Sequence[str], *, method: str = "REQUEST", number: int = 0) -> str:
    """Google lists the organizer among the guests, and writes UTC."""
    return folded(
        [
            "BEGIN:VCALENDAR",
            "PRODID:-//Google Inc//Google Calendar 70.9054//EN",
            "VERSION:2.0",
            "CALSCALE:GREGORIAN",
            f"METHOD:{method}",
            "BEGIN:VEVENT",
            "DTSTART:20261203T090000Z",
            "DTEND:20261203T093000Z",
            "DTSTAMP:20261129T120000Z",
            f"ORGANIZER;CN={organizer}:mailto:{organizer}",
            "UID:4qk2v7c1m8n5b3x9z0l6j@google.com",
            *(
                f"ATTENDEE;CUTYPE=INDIVIDUAL;ROLE=REQ-PARTICIPANT;PARTSTAT={state};RSVP=TRUE;"
                f"CN={each};X-NUM-GUESTS=0:mailto:{each}"
                for each, state in ((organizer, "ACCEPTED"), *((one, "NEEDS-ACTION") for one in guests))
            ),
            "X-GOOGLE-CONFERENCE:https://meet.example.test/abc-defg-hij",
            "X-MICROSOFT-CDO-OWNERAPPTID:1234567890",
            "CREATED:20261129T115900Z",
            "DESCRIPTION:-::~:~::~:~\\nJoin: https://meet.example.test/abc-defg-hij\\n-::~:~::~:~",
            "LAST-MODIFIED:20261129T120000Z",
            "LOCATION:",
            f"SEQUENCE:{number}",
            "STATUS:CANCELLED" if method == "CANCEL" else "STATUS:CONFIRMED",
            "SUMMARY:Standup \U0001f680",
            "TRANSP:OPAQUE",
            "END:VEVENT",
            "END:VCALENDAR",
        ]
    )


def icloud(organizer: str, guests: Sequence[str], *, method: str = "REQUEST", number: int = 0) -> str:
    """ICloud's organizer is an address for replies alone; the day is a series."""
    return folded(
        [
            "BEGIN:VCALENDAR",
            "CALSCALE:GREGORIAN",
            "PRODID:-//caldav.icloud.com//CALDAVJ 2524B1//EN",
            "VERSION:2.0",
            f"METHOD:{method}",
            "BEGIN:VEVENT",
            "CREATED:20261129T115900Z",
            *(
                f'ATTENDEE;CN="{each}";CUTYPE=INDIVIDUAL;EMAIL={each};PARTSTAT=NEEDS-ACTION;'
                f"ROLE=REQ-PARTICIPANT;RSVP=TRUE;SCHEDULE-STATUS=1.1:mailto:{each}"
                for each in guests
            ),
            f'ATTENDEE;CN="Cara";CUTYPE=INDIVIDUAL;PARTSTAT=ACCEPTED;ROLE=CHAIR:mailto:{organizer}',
            f'ORGANIZER;CN="Cara";EMAIL=cara@icloud.test:mailto:{organizer}',
            "DTEND;VALUE=DATE:20261206",
            "DTSTAMP:20261129T120000Z",
            "DTSTART;VALUE=DATE:20261205",
            "LAST-MODIFIED:20261129T120000Z",
            "RRULE:FREQ=WEEKLY;COUNT=4",
            f"SEQUENCE:{number}",
            "SUMMARY:Choir",
            "TRANSP:TRANSPARENT",
            "UID:9B1C2D3E-4F50-6172-8394-A5B6C7D8E9F0",
            "BEGIN:VALARM",
            "ACTION:EMAIL",
            "ATTENDEE:mailto:victim@elsewhere.test",
            "DESCRIPTION:Spam",
            "SUMMARY:Spam",
            "TRIGGER:-PT15H",
            "END:VALARM",
            "END:VEVENT",
            "END:VCALENDAR",
        ]
    )


def _head(sender: str, to: str, subject: str, kind: str) -> str:
    return (
        f"From: {sender}\r\nTo: {to}\r\nSubject: {subject}\r\nDate: {format_datetime(NOW)}\r\n"
        f"Message-ID: {make_msgid(domain='peer.test')}\r\nMIME-Version: 1.0\r\nContent-Type: {kind}\r\n\r\n"
    )


def _base64(text: str) -> str:
    return base64.encodebytes(text.encode()).decode().replace("\n", "\r\n")


def _versions(words: str, event: str, method: str, boundary: str) -> str:
    """What Outlook and iCloud send: the event is one of the versions of the text."""
    return (
        f"--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{words}\r\n"
        f"--{boundary}\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>{words}</p>\r\n"
        f'--{boundary}\r\nContent-Type: text/calendar; charset="utf-8"; method={method}\r\n'
        f"Content-Transfer-Encoding: base64\r\n\r\n{_base64(event)}--{boundary}--\r\n"
    )


def as_version(sender: str, to: str, words: str, event: str, method: str = "REQUEST") -> bytes:
    """An invitation as its own mail."""
    head = _head(sender, to, "FW: Planung Q1", 'multipart/alternative; boundary="_000_A"')
    return (head + _versions(words, event, method, "_000_A")).encode()


def as_file(sender: str, to: str, words: str, event: str, method: str = "REQUEST") -> bytes:
    """Gmail forwards the file."""
    return (
        _head(sender, to, "Fwd: Invitation: Standup", 'multipart/mixed; boundary="0000g"')
        + f"--0000g\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{words}\r\n"
        + '--0000g\r\nContent-Type: application/ics; name="invite.ics"\r\n'
        + 'Content-Disposition: attachment; filename="invite.ics"\r\n'
        + f"Content-Transfer-Encoding: base64\r\n\r\n{_base64(event)}--0000g--\r\n"
    ).encode()


def as_mail(sender: str, to: str, words: str, event: str, method: str = "REQUEST") -> bytes:
    """Apple Mail forwards the whole mail as a file."""
    inner = _head("noreply@email.apple.test", sender, "Choir", 'multipart/alternative; boundary="Apple-1"')
    inner += _versions("Cara invites you", event, method, "Apple-1")
    return (
        _head(sender, to, "Fwd: Choir", 'multipart/mixed; boundary="Apple-2"')
        + f"--Apple-2\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n{words}\r\n"
        + '--Apple-2\r\nContent-Type: message/rfc822; name="Choir.eml"\r\n'
        + f'Content-Disposition: attachment; filename="Choir.eml"\r\n\r\n{inner}\r\n--Apple-2--\r\n'
    ).encode()
