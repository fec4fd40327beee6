"""
How mail programs write what a person says: the bytes of replies, forwarded mails and mails with files.

Each builds its HTML from that of the answered mail, as it really does, and the plain version from the HTML by its own
rules: Gmail puts stars around what is bold and breaks lines, Outlook marks nothing as quoted, Apple Mail and
Thunderbird open the quotation where somebody types into it.
"""

from __future__ import annotations

import base64
import quopri
import re
import textwrap
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from html import escape
from html.parser import HTMLParser
from typing import ClassVar

_BLOCKS = {"p", "div", "ul", "ol", "li", "pre", "table", "tr", "h1", "h2", "h3", "blockquote", "body", "hr"}
_APART = {"p", "ul", "ol", "pre", "table", "h1", "h2", "h3"}
_CRLF = "\r\n"


class PlainVersion(HTMLParser):
    """
    The plain text that a program makes of its HTML.

    Args:
        stars: What is bold stands between stars.
        marks: What is quoted has ``>`` in front.
        width: Where lines are broken; 0: nowhere.
    """

    def __init__(self, *, stars: bool = False, marks: bool = True, width: int = 0) -> None:
        super().__init__()
        self._stars, self._marks, self._width = stars, marks, width
        self._lines: list[str] = []
        self._line, self._depth, self._href, self._pre, self._hidden = "", 0, "", 0, 0
        self._counts: list[int] = []

    @classmethod
    def of(cls, html: str, **rules: bool | int) -> str:
        """The text of some HTML."""
        made = cls(**rules)  # type: ignore[arg-type]
        made.feed(html)
        made.close()
        made._flush()
        return re.sub(r"\n{3,}", "\n\n", "\n".join(made._lines)).strip("\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self._flush()
        if tag in _APART and self._lines and self._lines[-1].strip("> "):
            self._put("")
        self._hidden += tag in ("style", "title", "head")
        self._pre += tag == "pre"
        self._depth += tag == "blockquote"
        if tag == "br":
            self._flush(even_empty=True)
        elif tag in ("ol", "ul"):
            self._counts.append(0 if tag == "ol" else -1)
        elif tag == "li":
            number = self._counts[-1] if self._counts else -1
            self._line = "   - " if number < 0 else f"   {number + 1}. "
            if number >= 0:
                self._counts[-1] += 1
        elif tag == "a":
            self._href = dict(attrs).get("href") or ""
        elif tag in ("b", "strong") and self._stars:
            self._line += "*"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("b", "strong") and self._stars:
            self._line += "*"
        elif tag == "a" and self._href:
            shown = self._href.removeprefix("mailto:")
            self._line += "" if self._line.endswith(shown) else f" <{shown}>"
            self._href = ""
        if tag in _BLOCKS:
            self._flush()
        if tag in _APART:
            self._put("")
        if tag in ("ol", "ul") and self._counts:
            self._counts.pop()
        self._hidden -= tag in ("style", "title", "head")
        self._pre -= tag == "pre"
        self._depth -= tag == "blockquote"

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if self._pre:
            *whole, self._line = (self._line + data).split("\n")
            for line in whole:
                self._put(line)
            return
        text = re.sub(r"[ \t\r\n]+", " ", data)
        self._line += text if self._line else text.lstrip(" ")

    def _flush(self, *, even_empty: bool = False) -> None:
        line, self._line = self._line.rstrip(" "), ""
        if line or even_empty:
            self._put(line)

    def _put(self, line: str) -> None:
        mark = "> " * self._depth if self._marks else ""
        line = line.replace("\xa0", " ")
        pieces = textwrap.wrap(line, self._width, drop_whitespace=True) if self._width else [line]
        self._lines += [f"{mark}{piece}".rstrip() if mark else piece for piece in pieces or [""]]


def body_of(mail: EmailMessage) -> str:
    """The HTML inside of the body of a mail."""
    part = mail.get_body(("html",))
    assert part is not None
    found = re.search(r"<body[^>]*>(.*)</body>", str(part.get_content()), re.DOTALL)
    assert found is not None
    return found[1].strip()


@dataclass(frozen=True)
class File:
    """What is attached."""

    name: str
    media_type: str
    content: bytes


class MailProgram:
    """
    One person's program. Each method gives the bytes of a mail.

    Args:
        sender: The person's address.
        to: The bot's.
    """

    mailer = ""
    re = "Re:"
    forward_prefix = "Fwd:"
    signature = ""
    quote_start = quote_end = ""
    rules: ClassVar[dict[str, bool | int]] = {}

    def __init__(self, sender: str, to: str) -> None:
        self.sender, self.to = sender, to

    # ── what the programs differ in ──

    def paragraph(self, text: str) -> str:
        """What the person has typed, in HTML."""
        return "".join(f"<div>{escape(line) or '<br>'}</div>" for line in text.split("\n"))

    def attribution(self, mail: EmailMessage) -> str:
        """What stands above a quotation."""
        raise NotImplementedError

    def above_forwarded(self, mail: EmailMessage) -> str:
        """What stands above a mail that is handed on."""
        raise NotImplementedError

    def page(self, inside: str) -> str:
        """The whole HTML."""
        return f"<html><body>{inside}</body></html>"

    # ── what a person does ──

    def new(self, subject: str, text: str) -> bytes:
        """A mail of its own."""
        return self._mail(subject, self.page(self.paragraph(text) + self.signature), None)

    def reply(self, mail: EmailMessage, text: str, *files: File) -> bytes:
        """An answer above the quotation."""
        html = self.paragraph(text) + self.signature + self._quotation(mail, body_of(mail))
        return self._mail(self._answered(mail), self.page(html), mail, *files)

    def reply_below(self, mail: EmailMessage, text: str) -> bytes:
        """An answer below the quotation."""
        html = self._quotation(mail, body_of(mail)) + self.paragraph(text) + self.signature
        return self._mail(self._answered(mail), self.page(html), mail)

    def reply_inside(self, mail: EmailMessage, text: str, *answers: tuple[str, str]) -> bytes:
        """A line above, and answers below the paragraphs that hold these words."""
        body = body_of(mail)
        for words, answer in answers:
            at = body.index("</p>", body.index(words)) + len("</p>")
            body = body[:at] + self.typed_inside(answer) + body[at:]
        html = self.paragraph(text) + self.signature + self._quotation(mail, body)
        return self._mail(self._answered(mail), self.page(html), mail)

    def typed_inside(self, text: str) -> str:
        """What is typed into a quotation: here it opens there."""
        return f"{self.quote_end}{self.paragraph(text)}{self.quote_start}"

    def forward(self, mail: EmailMessage, text: str) -> bytes:
        """A mail of somebody else, handed on with a question."""
        html = self.paragraph(text) + self.signature + self.above_forwarded(mail) + body_of(mail)
        return self._mail(f"{self.forward_prefix} {mail['Subject']}", self.page(html), None)

    def accept(self, event: str) -> bytes:
        """The accepted invitation, as the program's calendar says so."""
        words = f"<p>{self.sender} has accepted the invitation: {event}</p>"
        parts = [
            *self._versions(self.page(words)),
            ("text/calendar; charset=utf-8; method=REPLY", self._event(event)),
        ]
        return self._raw(f"Accepted: {event}", None, _multipart("alternative", parts))

    # ── bytes ──

    def _answered(self, mail: EmailMessage) -> str:
        bare = re.sub(r"^(?:re:\s*)+", "", str(mail["Subject"]), flags=re.IGNORECASE)
        return f"{self.re} {bare}"

    def _quotation(self, mail: EmailMessage, body: str) -> str:
        return f"{self.attribution(mail)}{self.quote_start}{body}{self.quote_end}"

    def _versions(self, html: str) -> list[tuple[str, bytes]]:
        plain = PlainVersion.of(html, **self.rules)
        return [("text/plain; charset=utf-8", plain.encode()), ("text/html; charset=utf-8", html.encode())]

    def _event(self, name: str) -> bytes:
        lines = [
            *("BEGIN:VCALENDAR", "METHOD:REPLY", "VERSION:2.0", "BEGIN:VEVENT", "UID:u1@peer.test"),
            *("DTSTART:20270120T090000Z", "DTEND:20270120T100000Z", f"SUMMARY:{name}"),
            f"ORGANIZER:mailto:{self.to}",
            f"ATTENDEE;PARTSTAT=ACCEPTED:mailto:{self.sender}",
            *("END:VEVENT", "END:VCALENDAR"),
        ]
        return _CRLF.join(lines).encode()

    def _mail(self, subject: str, html: str, answered: EmailMessage | None, *files: File) -> bytes:
        content = _multipart("alternative", self._versions(html))
        if files:
            content = _multipart("mixed", [content, *map(_attached, files)])
        return self._raw(subject, answered, content)

    def _raw(
        self, subject: str, answered: EmailMessage | None, content: tuple[str, bytes], *more: str
    ) -> bytes:
        fields = [
            f"From: Alice Example <{self.sender}>",
            f"To: {self.to}",
            f"Subject: {subject}",
            f"Date: {formatdate(localtime=True)}",
            f"Message-ID: {make_msgid(domain='peer.test')}",
            *(f"X-Mailer: {self.mailer}" for _ in [1] if self.mailer),
            "MIME-Version: 1.0",
            *more,
        ]
        if answered is not None:
            chain = f"{answered['References'] or ''} {answered['Message-ID']}".split()
            fields += [f"In-Reply-To: {answered['Message-ID']}", "References: " + f"{_CRLF} ".join(chain)]
        kind, body = content
        return (_CRLF.join([*fields, f"Content-Type: {kind}"]) + _CRLF * 2).encode() + body + b"\r\n"


def _multipart(kind: str, parts: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    boundary = f"=_{kind}_{len(parts)}_{hash(parts[-1][1]) & 0xFFFFFF:x}"
    out = b""
    for fields, body in parts:
        if not fields.startswith("multipart/") and "Encoding:" not in fields:
            fields, body = f"{fields}\r\nContent-Transfer-Encoding: quoted-printable", _quoted_printable(body)
        out += f"--{boundary}\r\nContent-Type: {fields}\r\n\r\n".encode() + body + b"\r\n"
    return f'multipart/{kind}; boundary="{boundary}"', out + f"--{boundary}--\r\n".encode()


def _quoted_printable(body: bytes) -> bytes:
    return quopri.encodestring(body.replace(b"\r\n", b"\n")).replace(b"\n", b"\r\n")


def _attached(file: File, how: str = "attachment") -> tuple[str, bytes]:
    fields = (
        f'{file.media_type}; name="{file.name}"\r\nContent-Disposition: {how}; filename="{file.name}"\r\n'
        "Content-Transfer-Encoding: base64"
    )
    return fields, base64.encodebytes(file.content).replace(b"\n", b"\r\n")


class Outlook(MailProgram):
    """Outlook for Windows behind Exchange."""

    mailer = "Microsoft Outlook 16.0"
    re, forward_prefix = "RE:", "FW:"
    rules: ClassVar[dict[str, bool | int]] = {"marks": False}

    def page(self, inside: str) -> str:
        return (
            '<html xmlns:o="urn:schemas-microsoft-com:office:office" xmlns="http://www.w3.org/TR/REC-html40"><head>'
            "<style><!-- p.MsoNormal {margin:0cm; font-size:11.0pt;} --></style></head>"
            f'<body lang="EN-GB"><div class="WordSection1">{inside}</div></body></html>'
        )

    def paragraph(self, text: str) -> str:
        lines = (*text.split("\n"), "")
        return "".join(f'<p class="MsoNormal">{escape(line) or "&nbsp;"}<o:p></o:p></p>' for line in lines)

    def typed_inside(self, text: str) -> str:
        return f'<p class="MsoNormal"><span style="color:#1F497D">{escape(text)}<o:p></o:p></span></p>'

    def attribution(self, mail: EmailMessage) -> str:
        sent = "Sunday, November 29, 2026 9:30 AM"
        fields = (("From", mail["From"]), ("Sent", sent), ("To", mail["To"]), ("Subject", mail["Subject"]))
        lines = "<br>".join(f"<b>{name}:</b> {escape(str(value))}" for name, value in fields)
        return (
            '<div><div style="border:none;border-top:solid #E1E1E1 1.0pt;padding:3.0pt 0cm 0cm 0cm">'
            f'<p class="MsoNormal">{lines}<o:p></o:p></p></div></div><p class="MsoNormal"><o:p>&nbsp;</o:p></p>'
        )

    above_forwarded = attribution


class Gmail(MailProgram):
    """Gmail in a browser: what is typed inside a quotation is quoted itself."""

    quote_start = (
        '<blockquote class="gmail_quote" style="margin:0px 0px 0px 0.8ex;border-left:1px solid rgb(204,204,204);'
        'padding-left:1ex"><u></u><div>'
    )
    quote_end = "</div></blockquote></div>"
    rules: ClassVar[dict[str, bool | int]] = {"stars": True, "width": 74}

    def paragraph(self, text: str) -> str:
        return f'<div dir="ltr">{super().paragraph(text)}</div><br>'

    def page(self, inside: str) -> str:
        return inside

    def typed_inside(self, text: str) -> str:
        return f"<div><b>{escape(text)}</b></div>"

    def attribution(self, mail: EmailMessage) -> str:
        who = str(mail["From"])
        return (
            '<div class="gmail_quote gmail_quote_container"><div dir="ltr" class="gmail_attr">On Sun, Nov 29, 2026 at '
            f'9:30\u202fAM &lt;<a href="mailto:{who}">{who}</a>&gt; wrote:<br></div>'
        )

    def above_forwarded(self, mail: EmailMessage) -> str:
        return (
            '<div class="gmail_quote gmail_quote_container"><div dir="ltr" class="gmail_attr">---------- Forwarded '
            f"message ---------<br>From: <strong>{escape(str(mail['From']))}</strong><br>Date: Sat, Nov 28, 2026 at "
            f"8:00\u202fPM<br>Subject: {escape(str(mail['Subject']))}<br>To: &lt;{self.sender}&gt;<br></div><br><br>"
        )

    def accept(self, event: str) -> bytes:
        words = (
            f"{self.sender} has accepted this invitation.\r\n\r\nTitle: {event}\r\nWhen: Wed Jan 20, 2027 9am"
        )
        flowed = "text/plain; charset=UTF-8; format=flowed; delsp=yes\r\nContent-Transfer-Encoding: base64"
        event_bytes = self._event(event)
        parts = [
            (flowed, base64.encodebytes(words.encode())),
            (
                "text/html; charset=UTF-8",
                f"<div><strong>{self.sender} has accepted this invitation.</strong></div>".encode(),
            ),
            ('text/calendar; charset="UTF-8"; method=REPLY', event_bytes),
        ]
        mixed = [
            _multipart("alternative", parts),
            _attached(File("invite.ics", "application/ics", event_bytes)),
        ]
        sender = "Sender: Google Calendar <calendar-notification@google.com>"
        fields = (f"Reply-To: {self.sender}", sender, "Auto-Submitted: auto-generated")
        subject = f"Accepted: {event} @ Wed Jan 20, 2027 9am - 10am (CET) ({self.to})"
        return self._raw(subject, None, _multipart("mixed", mixed), *fields)


class AppleMail(MailProgram):
    """Mail on an iPhone, with its signature."""

    mailer = "iPhone Mail (23A355)"
    signature = '<br id="lineBreakAtBeginningOfSignature"><div dir="ltr">Sent from my iPhone</div>'
    quote_start, quote_end = '<blockquote type="cite">', "</blockquote>"

    def page(self, inside: str) -> str:
        head = '<head><meta http-equiv="content-type" content="text/html; charset=utf-8"></head>'
        return f'<html>{head}<body dir="auto">{inside}</body></html>'

    def paragraph(self, text: str) -> str:
        return f'<div dir="ltr">{super().paragraph(text)}</div>'

    def attribution(self, mail: EmailMessage) -> str:
        return (
            '<div dir="ltr"><br><blockquote type="cite">On Nov 29, 2026, at 9:30\u202fAM, '
            f"{mail['From']} wrote:<br><br></blockquote></div>"
        )

    def _quotation(self, mail: EmailMessage, body: str) -> str:
        return super()._quotation(mail, f'<div dir="ltr">\ufeff</div>{body}')

    def above_forwarded(self, mail: EmailMessage) -> str:
        fields = (
            ("From", mail["From"]),
            ("Date", "November 28, 2026 at 8:00:00 PM GMT+1"),
            ("To", self.sender),
        )
        lines = "<br>".join(f"<b>{name}:</b> {escape(str(value))}" for name, value in fields)
        return (
            f'<div dir="ltr"><br>Begin forwarded message:<br><br></div><blockquote type="cite"><div dir="ltr">{lines}'
            f"<br><b>Subject:</b> <b>{escape(str(mail['Subject']))}</b><br><br></div></blockquote>"
            f'<blockquote type="cite"><div dir="ltr">\ufeff'
        )

    def reply(self, mail: EmailMessage, text: str, *files: File) -> bytes:
        """With a file the mail has text parts around it, and no HTML."""
        if not files:
            return super().reply(mail, text)
        html = self._quotation(mail, body_of(mail))
        below = "\n\nSent from my iPhone\n\n" + PlainVersion.of(html, **self.rules)
        parts = [("text/plain; charset=utf-8", f"{text}\n\n".encode())] if text else []
        parts += [_attached(each, "inline") for each in files]
        parts.append(("text/plain; charset=utf-8", below.encode()))
        return self._raw(self._answered(mail), mail, _multipart("mixed", parts))


class Thunderbird(MailProgram):
    """Thunderbird, which writes flowed plain text only."""

    quote_start, quote_end = '<blockquote type="cite" cite="mid:x@y">', "</blockquote>"
    rules: ClassVar[dict[str, bool | int]] = {"width": 72, "stars": True}

    def attribution(self, mail: EmailMessage) -> str:
        return f'<div class="moz-cite-prefix">On 11/29/26 09:30, {mail["From"]} wrote:<br></div>'

    def above_forwarded(self, mail: EmailMessage) -> str:
        fields = (
            ("Subject: ", mail["Subject"]),
            ("Date: ", "Sat, 28 Nov 2026 20:00:00 +0100"),
            ("From: ", mail["From"]),
        )
        lines = "<br>".join(
            f"{name}\t{escape(str(value))}" for name, value in (*fields, ("To: ", self.sender))
        )
        return f'<div class="moz-forward-container"><br><br>-------- Forwarded Message --------<br>{lines}<br><br>'

    def _versions(self, html: str) -> list[tuple[str, bytes]]:
        kind, plain = super()._versions(html)[0]
        return [(f"{kind}; format=flowed", plain)]

    def _mail(self, subject: str, html: str, answered: EmailMessage | None, *files: File) -> bytes:
        [plain] = self._versions(html)
        if files:
            return self._raw(subject, answered, _multipart("mixed", [plain, *map(_attached, files)]))
        kind, body = plain
        kind = f"{kind}\r\nContent-Transfer-Encoding: quoted-printable"
        return self._raw(subject, answered, (kind, _quoted_printable(body)))


PROGRAMS = (Outlook, Gmail, AppleMail, Thunderbird)
