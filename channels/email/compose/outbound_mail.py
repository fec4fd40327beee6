"""
Composes an answer into the bytes of a mail and its envelope. Pure: a row always gives the same bytes.
Message-ID, date and boundaries derive from the row, so that a repeated submission is the same mail. Foreign
subjects, ids and addresses are checked again before they become our fields. Fields use the "compat32"
classes, since newer ones encode long ids and break threading. All is ASCII, for servers without 8BITMIME and
SMTPUTF8; other addresses are refused.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.charset import QP, Charset
from email.generator import BytesGenerator
from email.header import Header
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.nonmultipart import MIMENonMultipart
from email.policy import Compat32
from email.utils import format_datetime

from agent_core.language import _
from agent_core.messages import Attachment, OutboundKind, OutboundMessage
from channels.base import DeliveryFailed
from channels.email.mail_route import route_of
from channels.email.parse.mail_addresses import AddressInvalid, normalise, without_tag
from channels.email.parse.mail_threads import (
    OWN_ID_FIELD,
    SEND_COPY_TAG,
    message_id_of,
    recipient_of,
    reply_references,
)
from channels.email.parse.transfer_encoding import flow
from channels.markup import MAX_BYTES, to_html, to_text

_BODY = "font-family:sans-serif;font-size:1em;line-height:1.4"
_MONO = "font-family:monospace;background:#f4f4f4"
_CELL = "border:1px solid #ccc;padding:4px 8px;text-align:left;vertical-align:top"
_QUOTE_STYLE = "margin:0 0 0 .8ex;border-left:2px solid #ccc;padding-left:1ex;color:#555"


MAX_SUBJECT = 200
_MAX_HEADLINE = 72
_SENTENCE = re.compile(r".{8,}?[.!?…](?=\s)")
_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_REPLY_PREFIX = re.compile(r"\s*+(?:re|aw|antw|sv|vs)\s*+(?:\[\d{1,3}\]\s*+)?:", re.IGNORECASE)
# Wide enough for a Message-ID on the line of its name: some programs do not look at the next one.
_WIRE = Compat32(linesep="\r\n", max_line_length=160, mangle_from_=False)
_NO_CONTAINER = frozenset({"message", "multipart"})


@dataclass(frozen=True, slots=True)
class Envelope:
    """
    Sender and recipients. ``cc`` get the mail if the server accepts them.

    One of ``copies``, addresses for our own copy, must be accepted: the copy proves after a crash that the
    mail was sent. An empty ``sender`` (RFC 5321, 4.5.5) prevents loops of bounces; ``instead`` is for servers
    that refuse it.
    """

    sender: str
    recipient: str
    copies: Sequence[str] = ()
    cc: Sequence[str] = ()
    instead: str = ""


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """A mail that is ready for submission."""

    message_id: str
    envelope: Envelope
    raw: bytes


def compose(
    message: OutboundMessage,
    *,
    address: str,
    self_copy: bool,
    files: Sequence[tuple[Attachment, bytes]] = (),
    missing: Sequence[str] = (),
    formatted: bool = True,
) -> OutgoingMail:
    """
    Build the mail of an outbox row, in a worker thread. Raises DeliveryFailed without a recipient.

    Args:
        self_copy: Send us a copy, to ``local+sent@domain`` or, if unsupported, ``local@domain``.
        missing: Sentences about files that could not be attached.
        formatted: Render the Markdown, instead of showing it as written.
    """
    recipient = _recipient(message)
    message_id = message_id_of(message.id, message.session, account=address)
    cc = () if message.kind is OutboundKind.NOTICE else _cc(message, {address, recipient})
    head = Message()
    head["From"] = address
    head["To"] = recipient
    if cc:
        head["Cc"] = ", ".join(cc)
    head["Subject"] = _encoded(subject_of(message))
    head["Date"] = format_datetime(message.created_at)
    head["Message-ID"] = head[OWN_ID_FIELD] = message_id
    own = _own_form(message, address)
    if own:
        head["Reply-To"] = own
    answered, chain = _thread(message)
    if answered is not None:
        head["In-Reply-To"] = answered
    if chain:
        head["References"] = " ".join(chain)
    is_answer = message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY)
    head["Auto-Submitted"] = "auto-replied" if is_answer else "auto-generated"
    head["X-Auto-Response-Suppress"] = "OOF, AutoReply"
    head["X-MS-Reactions"] = "disallow"  # Outlook's are mails like any other: nothing in them says so
    head["MIME-Version"] = "1.0"
    boundary = hashlib.sha256(message_id.encode()).hexdigest()[:32]
    texts = _alternative(*texts_of(message, missing=missing, formatted=formatted), f"=_{boundary}")
    if itip := message.context.itip:  # RFC 6047: programs look for it among the versions of the text
        method = (
            "COUNTER" if "\nMETHOD:COUNTER\r" in itip else "REPLY"
        )  # words of people stand on folded lines
        texts.attach(_part("calendar", itip, method=method))
    local, _, domain = address.rpartition("@")
    copies = (f"{local}+{SEND_COPY_TAG}@{domain}", address) if self_copy else ()
    raw = _assembled(head, texts, files, f"=_m{boundary}")
    envelope = Envelope("" if _is_notice(message) else address, recipient, copies, cc, address)
    return OutgoingMail(message_id, envelope, raw)


# ── whom to, and what about ──


def _is_notice(message: OutboundMessage) -> bool:
    """Return True for a message that only says that a mail is not answered, or not now."""
    return message.kind is OutboundKind.APOLOGY or (
        message.kind is OutboundKind.NOTICE and bool(route_of(message.context).message_id)
    )


def _recipient(message: OutboundMessage) -> str:
    asked = message.context.reply_to or recipient_of(message.session)
    if not asked:
        raise DeliveryFailed("there is no recipient: neither a mail to answer nor a person in the session")
    try:
        return normalise(asked)
    except AddressInvalid as exc:
        raise DeliveryFailed(f"mail cannot be sent to this address: {exc}") from exc


def _cc(message: OutboundMessage, known: set[str]) -> tuple[str, ...]:
    """Return the further recipients, without invalid and own addresses."""
    found: list[str] = []
    mine = {without_tag(one) for one in known}
    for each in message.context.cc:
        try:
            address = normalise(each)
        except AddressInvalid:
            continue
        if without_tag(address) not in mine:
            found.append(address)
    return tuple(dict.fromkeys(found))[:50]


def _own_form(message: OutboundMessage, address: str) -> str:
    """The form of our address that this conversation has, if it has one of its own."""
    try:
        own = normalise(route_of(message.context).own)
    except AddressInvalid:
        return ""
    return own if own != address and without_tag(own) == without_tag(address) else ""


def subject_of(message: OutboundMessage) -> str:
    """The subject of the mail for a row of the outbox."""
    asked = " ".join((message.context.subject or "").split())
    if headline := " ".join(message.context.headline.split()):
        text = headline
    elif message.rings_for is None and (route_of(message.context).message_id or asked):
        text = asked if _REPLY_PREFIX.match(asked) else f"Re: {asked or _('(no subject)')}"
    else:
        first = next((line for line in message.text.splitlines() if line.strip(" #*_>`|:-")), "")
        line = " ".join(to_text(first[: 2 * MAX_SUBJECT]).split()).strip("#*_>`| ")
        text = _headline(line) or _("Message")
        text = f"{text.rstrip(':')} – {asked}" if asked else text
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= MAX_SUBJECT else text[: MAX_SUBJECT - 1] + "…"


def _headline(line: str) -> str:
    """Return the subject of a mail that answers nothing: its first sentence, or its beginning."""
    sentence = _SENTENCE.match(line)
    if sentence is not None and len(sentence[0]) <= _MAX_HEADLINE:
        return sentence[0]
    if len(line) <= _MAX_HEADLINE:
        return line
    words = line[:_MAX_HEADLINE].rpartition(" ")[0] or line[: _MAX_HEADLINE - 1]
    return words.rstrip(" ,;:-–—") + "…"


def _encoded(subject: str) -> str:
    if subject.isascii() and "=?" not in subject:
        return subject
    return Header(subject, "utf-8", header_name="Subject").encode(maxlinelen=75)


def _thread(message: OutboundMessage) -> tuple[str | None, Sequence[str]]:
    route = route_of(message.context)
    answered = route.message_id if _ID.fullmatch(route.message_id or "") else None
    return answered, reply_references([item for item in route.references if _ID.fullmatch(item)], answered)


# ── what it says ──


def _redirected_by(message: OutboundMessage) -> str:
    """Explain to a recipient who did not ask who redirected the answer."""
    person = route_of(message.context).redirected_by.replace("`", "'")
    return (
        _("(`{person}` has asked me, and wants my answer sent to you.)\n\n", person=person) if person else ""
    )


def _with(text: str, missing: Sequence[str]) -> str:
    remarks = "\n".join(f"({each}.)" for each in missing)
    return f"{text}\n\n{remarks}".strip("\n") if remarks else text


def _quoted(message: OutboundMessage) -> tuple[str, str]:
    """Return the line above the quotation and the quoted text; both are empty without one."""
    quoted = message.context.quoted
    text = "" if quoted is None or message.context.part else quoted.text.strip("\n")
    if quoted is None or not text:
        return "", ""
    when = " ".join(quoted.date.split())
    who = _recipient(message)
    return (_("On {when}, {who} wrote:", when=when, who=who) if when else _("{who} wrote:", who=who)), text


def texts_of(
    message: OutboundMessage, *, missing: Sequence[str] = (), formatted: bool = True
) -> tuple[str, str]:
    """Both versions of the text of a mail, as text and as HTML; see `compose`."""
    text, most = _with(_redirected_by(message) + message.text, missing), MAX_BYTES if formatted else 0
    above, below = _quoted(message)
    if not below:
        return to_text(text, max_bytes=most), page(text, max_bytes=most)
    lines = "\n".join(f"> {line}".rstrip() for line in below.split("\n"))
    quoted = f"{html.escape(above)}<br>\n{html.escape(below)}"
    return f"{to_text(text, max_bytes=most)}\n\n{above}\n{lines}", page(text, max_bytes=most, quoted=quoted)


def _alternative(plain: str, shown: str, boundary: str) -> MIMEMultipart:
    versions = MIMEMultipart("alternative", boundary=boundary)
    del versions["MIME-Version"]
    versions.attach(_part("plain", flow(plain), format="flowed"))
    versions.attach(_part("html", shown))
    return versions


def _part(subtype: str, text: str, **parameters: str) -> MIMENonMultipart:
    charset = Charset("utf-8")
    charset.body_encoding = QP
    part = MIMENonMultipart("text", subtype)
    part.set_payload(text.encode("utf-8", "replace").decode(), charset)  # half a surrogate pair is no text
    del part["MIME-Version"]
    for name, value in parameters.items():
        part.set_param(name, value)
    return part


# ── the bytes ──


def _assembled(
    head: Message, texts: MIMEMultipart, files: Sequence[tuple[Attachment, bytes]], boundary: str
) -> bytes:
    """Put together by hand where there are files: the library takes seconds for large ones."""
    if not files:
        for name, value in texts.items():
            head[name] = value
        return _serialised(head, texts)
    line = f"--{boundary}".encode()
    # Given a multipart without parts, the library writes the end of one.
    kind = f'Content-Type: multipart/mixed; boundary="{boundary}"\r\n\r\n'.encode()
    fields = _serialised(head, Message()).rstrip(b"\r\n") + b"\r\n"
    pieces = [fields, kind, line, b"\r\n", _serialised(texts, texts)]
    for attachment, content in files:
        pieces += [b"\r\n", line, b"\r\n", _serialised(_described(attachment, content), Message())]
        pieces.append(base64.encodebytes(content).replace(b"\n", b"\r\n"))
    pieces += [b"\r\n", line, b"--\r\n"]
    return b"".join(pieces)


def _described(attachment: Attachment, content: bytes) -> Message:
    """The fields of a file's part; its name by RFC 2231 where it is not plain."""
    fields = Message()
    main, _, sub = attachment.media_type.partition("/")
    # What is encoded cannot be a message to other programs (RFC 2046, 5.2.1).
    is_known = bool(sub) and main not in _NO_CONTAINER
    fields["Content-Type"] = attachment.media_type if is_known else "application/octet-stream"
    if main == "text" and is_known and _is_utf8(content):
        fields.set_param("charset", "utf-8")
    name = "".join(char for char in attachment.name if char.isprintable()) or "file"
    plain = name.isascii() and '"' not in name and "\\" not in name
    fields.add_header("Content-Disposition", "attachment", filename=name if plain else ("utf-8", "", name))
    fields["Content-Transfer-Encoding"] = "base64"
    return fields


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _serialised(head: Message, body: Message) -> bytes:
    """The fields of one and the content of the other."""
    whole = head
    if body is not head:
        whole = Message()
        for name, value in head.items():
            whole[name] = value
        whole.set_payload(body.get_payload())
    buffer = io.BytesIO()
    BytesGenerator(buffer, policy=_WIRE).flatten(whole)
    return buffer.getvalue()


_STYLES = {
    "table": "border-collapse:collapse",
    "th": f"{_CELL};background:#f4f4f4",
    "td": _CELL,
    "pre": f"{_MONO};padding:8px;white-space:pre-wrap;overflow-wrap:anywhere",
    "code": _MONO,
    "blockquote": _QUOTE_STYLE,
    "h1": "font-size:1.4em",
    "h2": "font-size:1.25em",
    "h3": "font-size:1.1em",
    "hr": "border:0;border-top:1px solid #ccc",
}
# What people wrote has its angle brackets escaped by now, so these are tags.
_TAG = re.compile(rf"<({'|'.join(_STYLES)})(?=[ >])")


def page(markdown: str, *, quoted: str = "", max_bytes: int = MAX_BYTES) -> str:
    """Render a page, with the HTML ``quoted`` below; Markdown over ``max_bytes`` is shown as it is."""
    body = _TAG.sub(
        lambda tag: f'<{tag[1]} style="{_STYLES[tag[1]]}"', to_html(markdown, max_bytes=max_bytes)
    )
    if quoted:
        body += f'\n<blockquote style="{_QUOTE_STYLE};white-space:pre-wrap">{quoted}</blockquote>'
    return f'<!DOCTYPE html>\n<html><body style="{_BODY}">\n{body}\n</body></html>\n'
