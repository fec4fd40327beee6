"""
Reads a bounce: which of our mails it is about, and why that mail failed. Pure, linear. The proper form is a
``multipart/report`` (RFC 3464): a part for machines with an action and a status for each recipient, and the
mail that came back or its header. Many servers write something of their own instead, so our id is looked for
anywhere in the text as well; the ids of our mails are hard to guess, and whoever names one has got the mail.
Whether it was really sent is for the receiver to ask, and whether the report is believed is decided in
``trust/bounces.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from agent_core.language import _
from channels.email.parse.mail_threads import OWN_ID_PREFIX, is_own_id
from channels.email.parse.mime import (
    CONTROL,
    Caps,
    MimePart,
    Unreadable,
    decode_text,
    normalise_lines,
    parse_structure,
)
from channels.email.parse.transfer_encoding import decode_transfer

MAX_BYTES = 300_000
MAX_IDS = 10
MAX_WHY = 300
_ID = re.compile(re.escape(OWN_ID_PREFIX.encode()) + rb"[0-9a-f.]{40,60}@[A-Za-z0-9.-]{1,253}>")
_STATUS = re.compile(r"\b([245])\.\d{1,3}\.\d{1,3}\b")
_REPLY = re.compile(r"\b([45])\d\d[ -]")
_LOOSE_WHY = re.compile(r"^.{0,200}\b[45](?:\d\d|\.\d{1,3}\.\d{1,3})\b.{0,200}$", re.MULTILINE)
_RETURNED = frozenset({"message/rfc822", "text/rfc822-headers", "message/rfc822-headers", "message/global"})
_READ = "message/disposition-notification"
_WORDS_OF_LATER = re.compile(
    r"\b(?:delayed|will (?:be )?retr|still trying|verzögert|temporary)", re.IGNORECASE
)


class DeliveryStatus(StrEnum):
    """The fate of a mail."""

    FAILED = "failed"
    DELAYED = "delayed"
    """It may still arrive."""
    ARRIVED = "arrived"


@dataclass(frozen=True, slots=True)
class BounceReport:
    """
    The content of a bounce about our mails.

    Args:
        fate: The worst status of any recipient.
        recipient: That recipient; empty if unknown.
        why: The refusing server's words, on one line.
    """

    message_ids: tuple[str, ...]
    fate: DeliveryStatus
    recipient: str = ""
    why: str = ""


def read_report(raw: bytes, *, account: str) -> BounceReport | None:
    """
    Parse a report about mails of this account; None if it names none, or says of one only that it answers it
    or that it was read. Total.
    """
    data = normalise_lines(raw[:MAX_BYTES])
    try:
        parts = list(_leaves(parse_structure(data, Caps())))
    except Unreadable:
        parts = []
    ids = _ids(data, parts, account)
    if not ids:
        return None
    fate, recipient, why = DeliveryStatus.DELAYED, "", ""
    for found in (_of_status(_text(data, part)) for part in parts if _is_status(part)):
        if found is not None:
            fate, recipient, why = found
            break
    else:
        is_read = any(part.media_type == _READ for part in parts)
        if is_read or _ID.search(data.partition(b"\n\n")[2]) is None:
            return None
        fate, why = _of_words(
            "\n".join(_text(data, part) for part in parts if part.media_type.startswith("text/"))
        )
    return BounceReport(ids, fate, recipient, " ".join(CONTROL.sub(" ", why).split())[:MAX_WHY])


def in_words(report: BounceReport) -> str:
    """Describe a report for the owner; its texts are in code marks, since anybody can write one."""
    whom, why = (_in_marks(text) for text in (report.recipient, report.why))
    return _(
        "My mail to {whom} did not arrive: {why}", whom=whom or _("somebody"), why=why or _("no reason given")
    )


def _in_marks(text: str) -> str:
    flat = " ".join(text.replace("`", "'").split())
    return f"`{flat}`" if flat else ""


def _leaves(root: MimePart) -> Iterator[MimePart]:
    waiting = [root]
    while waiting:
        part = waiting.pop(0)
        if part.children:
            waiting = [*part.children, *waiting]
        else:
            yield part


def _ids(data: bytes, parts: list[MimePart], account: str) -> tuple[str, ...]:
    """Our ids: those of the mail that came back, if it did; what it answers is not meant then."""
    places = [data[part.start : part.end] for part in parts if part.media_type in _RETURNED]
    places = [decode_transfer(place, "quoted-printable") if b"=\n" in place else place for place in places]
    head = re.compile(
        rb"^(?:x-squidbot-)?message-id:[ \t]*(?:\n[ \t]+)?(" + _ID.pattern + rb")",
        re.IGNORECASE | re.MULTILINE,
    )
    found = [match[1] for place in places for match in head.finditer(place.partition(b"\n\n")[0])]
    found = found or [match[1] for match in head.finditer(data)] or [match[0] for match in _ID.finditer(data)]
    ids = dict.fromkeys(each.decode("ascii") for each in found)
    return tuple(each for each in ids if is_own_id(each, account=account))[:MAX_IDS]


def _is_status(part: MimePart) -> bool:
    return part.media_type in {"message/delivery-status", "message/global-delivery-status"}


def _text(data: bytes, part: MimePart) -> str:
    encoding = (part.headers.first("content-transfer-encoding") or "").strip().lower()
    return decode_text(decode_transfer(data[part.start : part.end], encoding), None)


def _of_status(text: str) -> tuple[DeliveryStatus, str, str] | None:
    """The worst block of a machine's part; None if there is none."""
    worst: tuple[DeliveryStatus, str, str] | None = None
    for block in text.split("\n\n")[:200]:
        fields = _fields(block)
        action = fields.get("action", "").lower()
        status = _STATUS.search(fields.get("status", ""))
        if not action and status is None:
            continue
        if action == "failed" or (not action and status is not None and status[1] == "5"):
            fate = DeliveryStatus.FAILED
        elif action == "delayed" or (status is not None and status[1] == "4"):
            fate = DeliveryStatus.DELAYED
        else:
            fate = DeliveryStatus.ARRIVED
        recipient = fields.get("final-recipient") or fields.get("original-recipient") or ""
        said = fields.get("diagnostic-code", "").partition(";")[2].strip() or fields.get("status", "")
        found = (fate, recipient.rpartition(";")[2].strip()[:320], said)
        if worst is None or (fate is DeliveryStatus.FAILED and worst[0] is not DeliveryStatus.FAILED):
            worst = found
    return worst


def _fields(block: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    last = ""
    for line in block.split("\n")[:100]:
        if line[:1] in (" ", "\t") and last:
            fields[last] += " " + line.strip()
            continue
        name, colon, value = line.partition(":")
        last = name.strip().lower() if colon else ""
        if last:
            fields[last] = value.strip()
    return fields


def _of_words(text: str) -> tuple[DeliveryStatus, str]:
    """A report without a part for machines: what its text says."""
    line = _LOOSE_WHY.search(text)
    why = line[0] if line else next((each for each in text.split("\n") if each.strip()), "")
    status, reply = _STATUS.search(why), _REPLY.search(why)
    code = status[1] if status else reply[1] if reply else ""
    later = code == "4" or (code != "5" and bool(_WORDS_OF_LATER.search(text)))
    return (DeliveryStatus.DELAYED if later else DeliveryStatus.FAILED), why
