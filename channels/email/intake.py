"""
One fetched mail → what the gateway is told about it. Pure, apart from the limiter's memory.

Every mail that is taken in becomes an `InboundMessage`, also one that will never be answered: then
``addressed`` is False and ``context["refused"]`` says why, so the gateway remembers that it was seen, and the
mail can neither come back nor stop the ones behind it. The exception is our own copy, which is no message.

``context`` comes back with every answer: where to reply, what to thread to, which mail to mark as answered.
"""

from __future__ import annotations

import fnmatch
import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent_core.messages import Audience, InboundMessage, Sender
from channels.email.config import EmailConfig
from channels.email.guard import OwnIdentity, Refused, Verdict, inspect
from channels.email.inbound import AttachmentNote, ParsedMail, parse_mail
from channels.email.limits import AnswerLimiter
from channels.email.mime import Headers, Unreadable, ambiguous_header, parse_headers
from channels.email.threads import native_id_of, session_of, thread_tag

__all__ = ["Arrival", "Intake", "OwnCopy", "read_arrival"]

MAX_NOTES = 20
TOO_LARGE = "too_large"
_NOT_READ = "[The text of this mail was not read: with what is attached it is too large.]"
MAX_REFERENCES_KEPT = 40


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    A mail as far as it could be read. ``mail`` is None for one that could not; ``trouble`` says why. One
    that is merely `TOO_LARGE` is still somebody's, who is told so; the others are only remembered.
    """

    uid: int
    received_at: datetime
    headers: Headers
    digest: str
    mail: ParsedMail | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class OwnCopy:
    """Our own mail, come back for the Sent folder."""

    uid: int
    message_id: str


def read_arrival(uid: int, received_at: datetime, raw: bytes, *, whole: bool) -> Arrival:
    """
    Read a raw mail; total. Call it in a worker thread.

    Args:
        uid: Which one.
        received_at: When it came.
        raw: All of it, or only its header.
        whole: Which of the two.
    """
    digest = hashlib.sha256(raw).hexdigest()
    if ambiguous_header(raw):
        # Whatever it says about its sender, nobody else may have read it like that.
        return Arrival(uid, received_at, Headers(()), digest, trouble="ambiguous_header")
    if whole:
        try:
            mail = parse_mail(raw)
        except Unreadable as exc:
            return Arrival(uid, received_at, _headers_or_none(raw), digest, trouble=exc.reason)
        return Arrival(uid, received_at, mail.headers, mail.digest, mail)
    return Arrival(uid, received_at, _headers_or_none(raw), digest, trouble=TOO_LARGE)


def _headers_or_none(raw: bytes) -> Headers:
    try:
        return parse_headers(raw)
    except Unreadable:
        return Headers(())


class Intake:
    """
    Turns arrivals into messages for one account.

    Args:
        channel: The configured name of the channel.
        config: Its settings.
        limiter: Counts what is answered.
    """

    def __init__(self, channel: str, config: EmailConfig, limiter: AnswerLimiter) -> None:
        self._channel = channel
        self.account = config.address
        self._own = OwnIdentity(
            config.address,
            config.trusted_authserv_ids,
            evidence_needed=config.sender_verification == "enforce",
        )
        self._allow_from = tuple(entry.strip().lower() for entry in config.allow_from)
        self._limiter = limiter

    def take(
        self, arrival: Arrival, *, uidvalidity: int, just_answered: bool = False
    ) -> InboundMessage | OwnCopy:
        """What this mail is."""
        headers = arrival.headers
        verdict = inspect(headers, self._own, just_answered=just_answered)
        message_id = headers.message_id()
        if verdict.refused is Refused.OWN_COPY and message_id is not None:
            return OwnCopy(arrival.uid, message_id)
        person = verdict.address or "unknown"
        native_id = native_id_of(message_id, person, arrival.digest, verified=verdict.verified)
        references = headers.references()
        tag = thread_tag(message_id or native_id, references, account=self.account)
        # What two have said to each other is not quoted to a third, just because a header says so.
        whom = f"{person}<{verdict.reply_to}>" if verdict.redirected else person
        session = session_of(self._channel, tag, whom)
        refused = self._refused(arrival, verdict, native_id, str(session))
        context: dict[str, Any] = {
            "uid": arrival.uid,
            "uidvalidity": uidvalidity,
            "message_id": message_id,
            "references": list(references[:1] + references[1:][-MAX_REFERENCES_KEPT:]),
            "subject": headers.subject(),
            "reply_to": verdict.reply_to,
        }
        if refused:
            context["refused"] = refused
        return InboundMessage(
            channel=self._channel,
            account=self.account,
            native_id=native_id,
            session=session,
            sender=Sender(address=person, name=verdict.name, verified=verdict.verified),
            text=_text(arrival.mail, headers) if not refused else "",
            received_at=arrival.received_at,
            audience=Audience.GROUP if verdict.others else Audience.DIRECT,
            addressed=not refused,
            context=context,
        )

    def unfetchable(self, uid: int, received_at: datetime, *, uidvalidity: int) -> InboundMessage:
        """A mail that the server lists and never gives out."""
        name = f"unfetchable-{uidvalidity}-{uid}"
        return InboundMessage(
            channel=self._channel,
            account=self.account,
            native_id=name,
            session=session_of(self._channel, thread_tag(name, (), account=self.account), "unknown"),
            sender=Sender(address="unknown"),
            text="",
            received_at=received_at,
            addressed=False,
            context={"refused": f"{Refused.UNREADABLE}_unfetchable", "uid": uid, "uidvalidity": uidvalidity},
        )

    def _refused(self, arrival: Arrival, verdict: Verdict, native_id: str, thread: str) -> str:
        if arrival.mail is None and arrival.trouble != TOO_LARGE:
            return f"{Refused.UNREADABLE}_{arrival.trouble}"
        if verdict.refused is not None:
            return str(verdict.refused)
        admitted = self._limiter.admit(
            native_id,
            sender=verdict.address,
            thread=thread,
            listed=self._listed(verdict.address),
            at=arrival.received_at,
        )
        return "" if admitted else str(Refused.TOO_MANY)

    def _listed(self, address: str) -> bool:
        return any(
            entry == address or ("*" in entry and fnmatch.fnmatchcase(address, entry))
            for entry in self._allow_from
        )


def _text(mail: ParsedMail | None, headers: Headers) -> str:
    if mail is None:
        return f"{headers.subject()}\n\n{_NOT_READ}".strip()
    text = mail.text or headers.subject() or "(an empty mail)"
    if not mail.attachments:
        return text
    named = "; ".join(_described(note) for note in mail.attachments[:MAX_NOTES])
    more = len(mail.attachments) - MAX_NOTES
    return f"{text}\n\n[Attached, but not read: {named}{f'; and {more} more' if more > 0 else ''}]"


def _described(note: AttachmentNote) -> str:
    size = f"{note.size_bytes} bytes" if note.size_bytes < 1_000 else f"{note.size_bytes // 1_000} kB"
    return f"{note.name} ({note.media_type}, {size})"
