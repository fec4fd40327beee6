"""
The text of a mail for the gateway: what its sender wrote, apart from what others may have written. Pure. Only
what is certainly the sender's counts as that: text of one part above all that looks like somebody else's
mail, and a subject that was plainly typed or that we have sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from agent_core.messages import BELOW_THE_MAIL, Background, Quotation
from channels.email.parse.inbound_mail import ParsedMail
from channels.email.parse.mail_threads import is_own_id
from channels.email.parse.mime import Headers
from channels.email.parse.unreadable import TOO_LARGE

Quote = Literal["none", "short", "full"]
MAX_BACKGROUND = 8_000
_SHORT_CHARS = 400
_SHORT_LINES = 6
_PREFIX = re.compile(r"[^\s\d:：]{1,20}(?: [^\s\d:：]{1,20})?\s?(?:[\[(]\d{1,3}[\])])?\s?[:：]")
"""What programs, and some people, write in front of a subject: one or two words and a colon."""
_NOT_READ = "[The text of this mail was not read: {why}.]"
_TOO_LARGE = "with its attachments it is too large"
_TWO_VERSIONS = (
    "[This mail has two versions that say different things: the plain text, and below it what most mail "
    "programs show.]"
)


def text_of(mail: ParsedMail | None, headers: Headers, trouble: str = TOO_LARGE) -> str:
    """
    Return the sender's own text.

    It is the subject for a mail with nothing but a file, an event or a forwarded mail, and for one that was
    not read because of ``trouble``.
    """
    if mail is None:
        why = _TOO_LARGE if trouble == TOO_LARGE else trouble.replace("_", " ")
        return f"{headers.subject()}\n\n{_NOT_READ.format(why=why)}".strip()
    parts = [mail.text or headers.subject() or ("" if mail.attachments else "(an empty mail)")]
    if mail.two_versions:
        parts.append(_TWO_VERSIONS)
    return "\n\n".join(part for part in parts if part)


def background_of(mail: ParsedMail | None) -> tuple[Background, ...]:
    """
    Return what others may have written: forwarded mails, events, the text below.

    An event counts as forwarded whoever its organizer is: accepting an invitation passes on its text.
    """
    if mail is None:
        return ()
    found: list[Background] = []
    if mail.rest:
        kind: Literal["forwarded", "quoted"] = "forwarded" if mail.forwards else "quoted"
        found.append(Background(kind=kind, sender=BELOW_THE_MAIL, text=_cut(mail.rest, MAX_BACKGROUND)))
    if mail.events:
        told_events = _cut("\n\n".join(mail.events), MAX_BACKGROUND)
        found.append(Background(kind="forwarded", sender="a calendar", text=told_events))
    for each in mail.forwarded:
        about = "; ".join(part for part in (each.date, each.subject) if part)
        text = f"{about}\n\n{each.text}" if about else each.text
        sender = each.sender or "unknown"
        found.append(Background(kind="forwarded", sender=sender, text=_cut(text, MAX_BACKGROUND)))
    room = 20_000
    told: list[Background] = []
    for each_found in found:
        text = _cut(each_found.text, max(room, 0))
        room -= len(text)
        told += [each_found.model_copy(update={"text": text})] if text else []
    return tuple(told)


def has_others_subject(
    mail: ParsedMail | None, headers: Headers, references: Sequence[str], *, account: str
) -> bool:
    """
    Return True if somebody else may have written the subject.

    That is so in an answer to somebody else, with a reply or forward prefix, and with others' words below the
    text.
    """
    if not references:
        return _PREFIX.match(headers.subject()) is not None or bool(background_of(mail))
    # A mail may name itself among those that it answers, and so does an answer to it then.
    newest = {*references[-1:], *filter(None, [headers.in_reply_to()])}
    return not all(is_own_id(each, account=account) for each in newest)


def is_same_subject(subject: str, sent: str) -> bool:
    """Return True if an answer's subject is the sent one, apart from prefixes of mail programs."""
    ours, theirs = (" ".join(each.split()) for each in (sent, subject))
    bare = ours[found.end() :].strip() if (found := _PREFIX.match(ours)) else ours
    prefix = theirs.removesuffix(bare).rstrip()
    return theirs.endswith(bare) and len(prefix) <= 20 and prefix[-1:] in ("", ":", "：", "]")


def quotation(mail: ParsedMail | None, headers: Headers, how: Quote) -> Quotation | None:
    """Return the quotation of this mail for an answer; None if there shall be none."""
    if mail is None or how == "none" or not mail.text:
        return None
    text = mail.text
    if how == "short":
        lines = text.split("\n")
        text = "\n".join(lines[:_SHORT_LINES])
        text = _cut(text, _SHORT_CHARS) if len(text) > _SHORT_CHARS else text
        if len(lines) > _SHORT_LINES and not text.endswith("…"):
            text += "\n…"
    return Quotation(text=_cut(text, 20_000), date=(headers.first("date") or "")[:80])


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)].rstrip() + "…" if room > 1 else ""
