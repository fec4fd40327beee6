"""
An answer → the bytes of a mail and its envelope. Pure: the same outbox row gives the same bytes every time.

The Message-ID comes from the row (``threads``), the date from its creation, even the MIME boundary from its
id, so a mail that is handed in again after an unknown outcome is the same mail, and receivers fold it.

Whatever comes from a foreign mail (its subject, its ids, its address) is checked again before it becomes a
header field here: nobody writes our header for us. Fields are serialised by the old ("compat32") classes; the
new ones turn long ids into encoded words, which breaks threading.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.charset import QP, Charset
from email.generator import BytesGenerator
from email.header import Header
from email.mime.multipart import MIMEMultipart
from email.mime.nonmultipart import MIMENonMultipart
from email.policy import Compat32
from email.utils import format_datetime

from agent_core.messages import OutboundKind, OutboundMessage
from channels.base import DeliveryFailed
from channels.email.addresses import AddressInvalid, normalise
from channels.email.threads import message_id_of, recipient_of, reply_references
from channels.markup import to_html

__all__ = ["SEND_COPY_TAG", "Envelope", "OutgoingMail", "compose"]

SEND_COPY_TAG = "sent"
MAX_SUBJECT = 200
_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_REPLY_PREFIX = re.compile(r"\s*(?:re|aw|antw|sv|vs)\s*(?:\[\d{1,3}\])?\s*:", re.IGNORECASE)
# Wide enough for a Message-ID on the line of its name: some programs do not look at the next one.
_WIRE = Compat32(linesep="\r\n", max_line_length=160, mangle_from_=False)
_STYLE = "font-family:sans-serif;font-size:1em;line-height:1.4"


@dataclass(frozen=True, slots=True)
class Envelope:
    """
    Who sends to whom. ``copies`` are tried in order until the server takes one: where our own copy goes.

    Without any copy taken nothing is sent, because the copy is what tells after a crash that it was.
    """

    sender: str
    recipient: str
    copies: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """Ready to be handed in."""

    message_id: str
    envelope: Envelope
    raw: bytes


def compose(message: OutboundMessage, *, address: str, self_copy: bool) -> OutgoingMail:
    """
    Build the mail for one row of the outbox.

    Args:
        message: The row.
        address: Our own address.
        self_copy: Whether a copy goes to ourselves, as ``local+sent@domain`` or, where the server does not
            know such addresses, as ``local@domain``.

    Raises:
        DeliveryFailed: Nobody can be written to.
    """
    recipient = _recipient(message)
    message_id = message_id_of(message.id, message.session, account=address)
    root = MIMEMultipart("alternative", boundary=f"=_{hashlib.sha256(message_id.encode()).hexdigest()[:32]}")
    root["From"] = address
    root["To"] = recipient
    root["Subject"] = _encoded(_subject(message))
    root["Date"] = format_datetime(message.created_at)
    root["Message-ID"] = message_id
    answered, chain = _thread(message)
    if answered is not None:
        root["In-Reply-To"] = answered
    if chain:
        root["References"] = " ".join(chain)
    is_answer = message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY)
    root["Auto-Submitted"] = "auto-replied" if is_answer else "auto-generated"
    root["X-Auto-Response-Suppress"] = "OOF, AutoReply"
    root.attach(_part("plain", message.text))
    root.attach(_part("html", _page(message.text)))
    local, _, domain = address.rpartition("@")
    copies = (f"{local}+{SEND_COPY_TAG}@{domain}", address) if self_copy else ()
    return OutgoingMail(message_id, Envelope(address, recipient, copies), _serialised(root))


def _recipient(message: OutboundMessage) -> str:
    asked = message.context.get("reply_to") or recipient_of(message.session)
    try:
        return normalise(str(asked)) if asked else _nobody()
    except AddressInvalid as exc:
        raise DeliveryFailed(f"this is no address to write to: {exc}") from exc


def _nobody() -> str:
    raise DeliveryFailed("nobody to write to: neither a mail to answer nor a person in the session")


def _subject(message: OutboundMessage) -> str:
    asked = " ".join(str(message.context.get("subject") or "").split())
    if message.context.get("message_id") or asked:
        text = asked if _REPLY_PREFIX.match(asked) else f"Re: {asked or '(no subject)'}"
    else:
        text = next(
            (line.strip(" #*_>`") for line in message.text.splitlines() if line.strip(" #*_>`")), "Message"
        )
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= MAX_SUBJECT else text[: MAX_SUBJECT - 1] + "…"


def _encoded(subject: str) -> str:
    if subject.isascii() and "=?" not in subject:
        return subject
    return Header(subject, "utf-8", header_name="Subject").encode(maxlinelen=75)


def _thread(message: OutboundMessage) -> tuple[str | None, Sequence[str]]:
    answered = _id_or_none(message.context.get("message_id"))
    given = message.context.get("references")
    known = [_id_or_none(item) for item in given] if isinstance(given, (list, tuple)) else []
    return answered, reply_references([item for item in known if item], answered)


def _id_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and _ID.fullmatch(value) else None


def _page(text: str) -> str:
    return f'<!DOCTYPE html>\n<html><body style="{_STYLE}">\n{to_html(text)}\n</body></html>\n'


def _part(subtype: str, text: str) -> MIMENonMultipart:
    charset = Charset("utf-8")
    charset.body_encoding = QP
    part = MIMENonMultipart("text", subtype)
    part.set_payload(text.encode("utf-8", "replace").decode(), charset)  # half a surrogate pair is no text
    return part


def _serialised(root: MIMEMultipart) -> bytes:
    buffer = io.BytesIO()
    BytesGenerator(buffer, policy=_WIRE).flatten(root)
    return buffer.getvalue()
