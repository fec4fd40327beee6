"""
Turns one fetched mail into a message for the gateway. Pure, apart from the limiter's memory. Mails that will
not be answered become messages too, with ``addressed`` False and ``context.refused``, so that they are
remembered and block nothing; only our own copy is none. Mails that lack proof of the sender are for a person
(``context.quarantine``); unproven senders never hear from us. Read-only senders get ``context.read_only`` and
a session without recipient. ``context`` comes back with the answer: reply address, thread, mail to mark.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

from agent_core.html_to_text import html_to_text
from agent_core.language import _, speaking
from agent_core.messages import (
    Audience,
    Background,
    InboundMessage,
    MessageContext,
    OutboundMessage,
    Quotation,
    Sender,
    SessionKey,
)
from channels.email.compose.outbound_mail import subject_of, texts_of
from channels.email.config import EmailConfig, MailAnswerLimits
from channels.email.mail_route import MailRoute, route_of
from channels.email.parse.inbound_mail import ParsedMail, parse_mail
from channels.email.parse.mail_addresses import find_in_order, mailboxes_or_none, without_tag
from channels.email.parse.mail_threads import (
    SEND_COPY_TAG,
    is_own_id,
    native_id_of,
    own_id_of,
    session_of,
    tag_of_address,
    thread_tag,
)
from channels.email.parse.mime import Headers, Unreadable, ambiguous_header, ambiguous_recipients
from channels.email.parse.unreadable import SENT_BY_A_PROGRAM, TOO_LARGE, apology_of, headers_of
from channels.email.receive.intake_text import (
    MAX_BACKGROUND,
    background_of,
    has_others_subject,
    is_same_subject,
    quotation,
    text_of,
)
from channels.email.reply_limits import DAY_S, HOUR_S, AnswerLimiter, AnswerSlot
from channels.email.trust.dkim import SignatureClaim, claims_of
from channels.email.trust.sender_policy import (
    MailRefused,
    OwnIdentity,
    SenderVerdict,
    claimed_senders,
    inspect,
    open_question,
    sender_of,
    strength,
)

MAX_COPIED = 50
_ROOM_IN_QUARANTINE = MailAnswerLimits(sender_per_hour=20, sender_per_day=50)
"""Of one person, or of all whom one pattern lets in."""
MAX_UNPROVEN = 20_000
_EXPLAINED = "<sent-by-a-program>"
_CUT = "[The rest of this mail was not kept, because nothing proves who wrote it.]"
NOBODY = "nobody"
_NONE: Mapping[str, str] = MappingProxyType({})
_READABLE = (None, MailRefused.AUTOMATIC, MailRefused.MAILING_LIST, MailRefused.NOT_ADDRESSED)
_BY_UNSIGNED_FIELDS = {
    *(MailRefused.AUTOMATIC, MailRefused.MAILING_LIST, MailRefused.BOUNCE),
    *("too_many_header_fields", "header_too_large"),
}
"""What becomes of a signed mail if somebody hands in a copy of it with fields on top."""
_FOR_A_PERSON = (MailRefused.NOT_VERIFIED, MailRefused.NO_SENDER, MailRefused.TOO_MANY)


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    A mail as far as it could be read; without ``mail``, ``trouble`` says why.

    One that is `TOO_LARGE` is answered. A proven sender of any other is notified
    (`channels.email.parse.unreadable`); the rest are only recorded.
    """

    uid: int
    received_at: datetime
    headers: Headers
    digest: str
    mail: ParsedMail | None = None
    trouble: str = ""
    claims: tuple[SignatureClaim, ...] = ()
    """Its signatures."""


@dataclass(frozen=True, slots=True)
class OwnCopy:
    """
    A mail with a Message-ID of ours under our address: our own, come back for the Sent folder. ``given_id``
    is the one that its server gave it.
    """

    uid: int
    message_id: str
    given_id: str | None = None


def read_arrival(uid: int, received_at: datetime, raw: bytes, *, whole: bool) -> Arrival:
    """Parse a raw mail, or its header if not ``whole``; total. Call it in a worker thread."""
    digest = hashlib.sha256(raw).hexdigest()
    if ambiguous_header(raw):
        # Whatever it says about its sender, nobody else may have read it like that.
        return Arrival(uid, received_at, Headers(()), digest, trouble="ambiguous_header")
    if whole:
        try:
            mail = parse_mail(raw)
        except Unreadable as exc:
            arrival = Arrival(uid, received_at, headers_of(raw), digest, trouble=exc.reason)
        else:
            arrival = Arrival(uid, received_at, mail.headers, mail.digest, mail)
    else:
        arrival = Arrival(uid, received_at, headers_of(raw), digest, trouble=TOO_LARGE)
    return _examined(arrival, raw)


def given_up(uid: int, received_at: datetime, raw: bytes, trouble: str) -> Arrival:
    """Return the arrival of a mail that could not be parsed; total. Call it in a worker thread."""
    headers = Headers(()) if ambiguous_header(raw) else headers_of(raw)
    digest = hashlib.sha256(raw).hexdigest()
    return _examined(Arrival(uid, received_at, headers, digest, trouble=trouble), raw)


def _examined(arrival: Arrival, raw: bytes) -> Arrival:
    """Add what can only be read from a whole header: ambiguous fields and signature claims."""
    doubtful = arrival.headers.doubtful | ambiguous_recipients(raw)
    headers = replace(arrival.headers, doubtful=doubtful)
    return replace(arrival, headers=headers, claims=claims_of(raw))


class MailIntake:
    """
    Turns arrivals into messages for one account.

    Args:
        welcome: Returns True if a proven address would be allowed.
        is_owner: Returns True for the owner, who never waits.
        crowded: Called if a sender's mail waits over an hour.
    """

    def __init__(
        self,
        channel: str,
        config: EmailConfig,
        limiter: AnswerLimiter,
        welcome: Callable[[str], bool] = lambda _: True,
        *,
        is_owner: Callable[[str], bool] = lambda _: False,
        crowded: Callable[[str, float], None] = lambda _who, _wait_s: None,
        language_of: Callable[[str], str] = lambda _who: "",
    ) -> None:
        self._language_of = language_of
        self._channel = channel
        self._is_owner = is_owner
        self._crowded = crowded
        self.account = config.address
        self._own = OwnIdentity(
            config.address,
            config.trusted_authserv_ids,
            authentication_needed=config.sender_verification == "enforce",
            headerless=config.trust_headerless_auth_results,
            subaddress_secrets=config.secret_by_sender,
            listed=self._is_named,
            names_colleagues=is_owner,
            ingested=self._read_only,
        )
        self._quote = config.quote_original
        self._reply_all = config.reply_all
        self._subaddress_sessions = config.subaddress_sessions
        self._secrets = tuple(self._own.subaddress_secrets.values())
        self._ingest_only_from = config.ingest_only_from
        self._welcome = welcome
        self._quarantined = AnswerLimiter(_ROOM_IN_QUARANTINE)
        self._allow_from = tuple(entry.strip().lower() for entry in config.allow_from)
        self._limiter = limiter

    def is_owners(self, addresses: Iterable[str]) -> bool:
        """Return True if one of the possible senders is the owner, provided that is proven later."""
        return any(map(self._is_owner, addresses))

    def seems_owners(self, header: Arrival, *, signed: bool) -> bool:
        """
        Return True if a mail, of which only the header is read, is probably the owner's.

        The provider's verdict decides, or, where it is to be ``signed``, a usable signature of the domain.
        """
        if not self._is_owner(sender_of(header.headers)):
            return False
        if inspect(header.headers, self._own, claims=header.claims).verified:
            return True
        fit = any(claim.domain and not claim.lacks for claim in header.claims)
        return signed and fit and open_question(header.headers, self._own, claims=header.claims) is not None

    def open_question(self, arrival: Arrival) -> str | None:
        """The sender of a mail who still needs a proof; see `trust.sender_policy.open_question`."""
        if arrival.mail is None and arrival.trouble == TOO_LARGE:
            return None  # what is signed was not fetched
        robots_too = any(self._read_only(who) for who in claimed_senders(arrival.headers))
        return open_question(arrival.headers, self._own, claims=arrival.claims, robots_too=robots_too)

    def own_copy(self, arrival: Arrival) -> OwnCopy | None:
        """The mail of ours that this seems to be a copy of; None for all others. Nothing is counted."""
        return self._own_copy(arrival, inspect(arrival.headers, self._own))

    def _own_copy(self, arrival: Arrival, verdict: SenderVerdict) -> OwnCopy | None:
        message_id = own_id_of(arrival.headers, account=self.account)
        if verdict.refused is not MailRefused.OWN_COPY or message_id is None:
            return None
        return OwnCopy(arrival.uid, message_id, arrival.headers.message_id())

    def convert(
        self,
        arrival: Arrival,
        *,
        uidvalidity: int,
        verification: str = "",
        doubt: str = "",
        now: datetime | None = None,
        ours: Mapping[str, str] = _NONE,
    ) -> InboundMessage | OwnCopy:
        """
        Turn a mail into a message, or an `OwnCopy`.

        ``verification`` is further evidence for the sender, ``doubt`` the reason why there is none; ``now``
        is the time of intake if it differs from the arrival; ``ours`` maps ids that a server changed to ours.
        """
        headers = arrival.headers
        verdict = inspect(headers, self._own, claims=arrival.claims, verification=verification)
        if (copy := self._own_copy(arrival, verdict)) is not None:
            return copy
        person = verdict.address or self._claimed(headers)
        explained = False
        if arrival.mail is not None and self._is_explained(headers, arrival.mail, verdict, ours):
            verdict = replace(verdict, refused=None)
            explained = not (arrival.mail.wants_no_answer or arrival.mail.has_note)
        native_id, session = self._names(arrival, verdict, person, ours, explained=explained)
        refused, quarantine, place = self._judged(
            arrival, verdict, native_id, person, taken_at=now or arrival.received_at
        )
        context, route = self._known(arrival, verdict, person, ours)
        route = replace(route, uidvalidity=uidvalidity)
        context = replace(
            context,
            doubt="" if verdict.verified else doubt or verdict.doubt,
            quarantine=quarantine,
            refused=refused,
        )
        if not refused:
            route = self._for_the_answer(route, arrival, verdict, ours)
            with speaking(self._language_of(person)):
                context = _how_to_answer(context, arrival, verdict, place, read_only=self._read_only(person))
                context = replace(context, refusal=_(SENT_BY_A_PROGRAM) if explained else "")
            also_to = self._others(arrival, verdict)
            cc = tuple(filter(self._is_named, also_to))[:MAX_COPIED] if self._reply_all else ()
            context = replace(context, quoted=self._quotation(arrival), cc=cc, also_to=also_to[:MAX_COPIED])
        return InboundMessage(
            channel=self._channel,
            account=self.account,
            native_id=native_id,
            session=session,
            sender=Sender(address=person, name=verdict.name, verified=verdict.verified),
            text="" if refused else self._text(arrival, unproven=not verdict.verified),
            received_at=arrival.received_at,
            audience=Audience.GROUP if verdict.others else Audience.DIRECT,
            addressed=not refused,
            context=context.with_route(route),
            background=() if refused else self._background(arrival.mail),
        )

    def _names(
        self,
        arrival: Arrival,
        verdict: SenderVerdict,
        person: str,
        ours: Mapping[str, str],
        *,
        explained: bool,
    ) -> tuple[str, SessionKey]:
        """Return the native id and the session of a mail."""
        message_id = arrival.headers.message_id()
        native_id = native_id_of(
            message_id,
            person,
            arrival.digest,
            verified=verdict.verified,
            refused=bool({verdict.refused, arrival.trouble} & _BY_UNSIGNED_FIELDS),
        )
        if explained:  # the same for all of them, so that it is said once
            native_id = native_id_of(_EXPLAINED, person, "", verified=True)
        references = tuple(ours.get(each, each) for each in arrival.headers.references())
        word = self._word_of_address(arrival.headers)
        tag = (
            tag_of_address(word)
            if word
            else thread_tag(message_id or native_id, references, account=self.account)
        )
        # What two have said to each other is not quoted to a third, just because a header says so.
        whom = f"{person}<{verdict.reply_to}>" if verdict.is_redirected else person
        # So that no answer can go to who is only read, whoever lets it out of quarantine.
        return native_id, session_of(self._channel, tag, NOBODY if self._read_only(person) else whom)

    def _known(
        self, arrival: Arrival, verdict: SenderVerdict, person: str, ours: Mapping[str, str]
    ) -> tuple[MessageContext, MailRoute]:
        """Return the facts about a mail, whether it is answered or not."""
        references, mail = arrival.headers.references(), arrival.mail
        own_references = tuple(ours.get(each, each) for each in references)
        others_subject = has_others_subject(mail, arrival.headers, own_references, account=self.account)
        route = MailRoute(
            uid=arrival.uid,
            message_id=arrival.headers.message_id(),
            references=(*references[:1], *references[1:][-40:]),
            others_subject=others_subject,
            evidence=verdict.authentication,
        )
        back = verdict.reply_to or (person if "@" in person else "")
        context = MessageContext(
            subject=self._without_secrets(arrival.headers.subject()),
            reply_to="" if self._read_only(person) else back,
            proof=strength(verdict.authentication),
            others_words=others_subject or (mail is not None and mail.is_mixed),
            not_named=self._is_copied(arrival.headers),
        )
        return context, route

    def _is_copied(self, headers: Headers) -> bool:
        """Return True if a mail goes to others and names us in Cc alone."""
        named = [
            name
            for name in ("to", "cc")
            for value in headers.all(name)
            if without_tag(self.account) in map(without_tag, mailboxes_or_none([value]) or ())
        ]
        return "cc" in named and "to" not in named

    def answering(
        self, message: InboundMessage, arrival: Arrival, sent: OutboundMessage, *, formatted: bool
    ) -> InboundMessage:
        """
        Return a reply's message without what it repeats of our (rendered: ``formatted``) mail; blocks.

        A reaction to that is one, as in a room.
        """
        context, route, mail = message.context, route_of(message.context), arrival.mail
        if mail is not None and mail.reaction and not self._read_only(message.sender.address):
            context = replace(context, read_only=False, others_words=False, quoted=None)
            update = {"kind": "reaction", "text": mail.reaction, "context": context, "background": ()}
            return message.model_copy(update=update)
        subject, ours = (self._without_secrets(each) for each in (context.subject or "", subject_of(sent)))
        if route_of(sent.context).others_subject or not is_same_subject(subject, ours):
            context = replace(context, others_words=True)
            context = context.with_route(replace(route, others_subject=True))
        elif sent.context.subject and not is_same_subject(ours, sent.context.subject):
            # That of a question or alert is not what the conversation is about.
            context = replace(context, subject=sent.context.subject)
        if mail is None:
            return message.with_context(context)
        plain, shown = texts_of(sent, formatted=formatted)
        mail = mail.without([plain, html_to_text(shown)])
        arrival = replace(arrival, mail=mail)
        context = replace(context, quoted=self._quotation(arrival) or context.quoted)
        text = self._text(arrival, unproven=not message.sender.verified)
        background = self._background(mail)
        if plain and len(route.references) == 1:  # we began, perhaps with what no history has
            ours = self._without_secrets(plain)[:MAX_BACKGROUND]
            background = (Background(kind="quoted", sender=self.account, text=ours), *background)
        update = {"text": text, "context": context, "background": background}
        return message.model_copy(update=update)

    def _text(self, arrival: Arrival, *, unproven: bool) -> str:
        """Return the text; without proof of the sender only as much as a person needs to judge it."""
        said = self._without_secrets(text_of(arrival.mail, arrival.headers, arrival.trouble))
        return f"{said[:MAX_UNPROVEN]}\n\n{_CUT}" if unproven and len(said) > MAX_UNPROVEN else said

    def _background(self, mail: ParsedMail | None) -> tuple[Background, ...]:
        """Return what others may have written in the mail, without secrets."""
        clean = self._without_secrets
        return tuple(
            each.model_copy(update={"sender": clean(each.sender), "text": clean(each.text)})
            for each in background_of(mail)
        )

    def _quotation(self, arrival: Arrival) -> Quotation | None:
        """Return the quotation for an answer, without secrets: others may get a copy of it."""
        found = quotation(arrival.mail, arrival.headers, self._quote)
        return found and replace(found, text=self._without_secrets(found.text))

    def _for_the_answer(
        self, route: MailRoute, arrival: Arrival, verdict: SenderVerdict, ours: Mapping[str, str]
    ) -> MailRoute:
        """Add our address there, who asked, and what it answers."""
        local, _, domain = self.account.rpartition("@")
        word = self._word_of_address(arrival.headers)
        answered = arrival.headers.in_reply_to() or ""
        answered = ours.get(answered, answered)
        return replace(
            route,
            own=f"{local}+{word}@{domain}" if word else "",
            redirected_by=verdict.address if verdict.is_redirected else "",
            answers=answered if is_own_id(answered, account=self.account) else "",
        )

    def _others(self, arrival: Arrival, verdict: SenderVerdict) -> tuple[str, ...]:
        """Return the other recipients of a mail, as its header names them."""
        known = {without_tag(one) for one in (self.account, verdict.address, verdict.reply_to)}
        others = [
            address
            for name in ("to", "cc")
            for value in arrival.headers.all(name)
            for address in (mailboxes_or_none([value]) or ())[:MAX_COPIED]
            if without_tag(address) not in known
        ]
        return tuple(dict.fromkeys(others))

    def _word_of_address(self, headers: Headers) -> str:
        """The word in ``local+word@domain`` to which the mail was sent; empty if it names no conversation."""
        if not self._subaddress_sessions:
            return ""
        mine = without_tag(self.account)
        for name in ("delivered-to", "to", "cc"):
            for value in headers.all(name):
                for address in find_in_order(value.lower())[:MAX_COPIED]:
                    word = address.rpartition("@")[0].partition("+")[2]
                    if word and without_tag(address) == mine and not self._is_taken(word):
                        return word
        return ""

    def _is_explained(
        self, headers: Headers, mail: ParsedMail, verdict: SenderVerdict, ours: Mapping[str, str]
    ) -> bool:
        """Return True if an allowed sender is told that such mails get no answer; not for auto-responders."""
        said = (headers.first("auto-submitted") or "no").strip().lower()
        answered = headers.in_reply_to() or ""
        # Exchange's notices of absence say "auto-generated", and answer a mail of ours.
        is_reply = said != "no" and is_own_id(ours.get(answered, answered), account=self.account)
        is_invited = mail.wants_no_answer or mail.has_note
        answers_by_itself = said.startswith("auto-replied") or (is_reply and not is_invited)
        return (
            verdict.refused in (MailRefused.AUTOMATIC, MailRefused.MAILING_LIST)
            and verdict.verified
            and not answers_by_itself
            and not is_own_id(headers.message_id() or "", account=self.account)
            and not self._read_only(verdict.address)
            and self._welcome(verdict.address)
        )

    def _is_named(self, address: str) -> bool:
        """Return True if an entry of ``allow_from`` names or matches this address, other than "*"."""
        return any(
            "@" in entry and (entry == address or ("*" in entry and fnmatch.fnmatchcase(address, entry)))
            for entry in self._allow_from
        )

    def _is_taken(self, word: str) -> bool:
        return word == SEND_COPY_TAG or word in (secret.lower() for secret in self._secrets)

    def _claimed(self, headers: Headers) -> str:
        """Return the probable sender of a mail without a single one: a welcome person if there is one."""
        claimed = claimed_senders(headers)
        return next((who for who in claimed if self._welcome(who)), claimed[0] if claimed else "unknown")

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = re.sub(re.escape(secret), "…", text, flags=re.IGNORECASE)
        return text

    def unfetchable_mail(self, uid: int, received_at: datetime, *, uidvalidity: int) -> InboundMessage:
        """A mail that the server lists but never returns."""
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
            context=MessageContext(refused=f"{MailRefused.UNREADABLE}_unfetchable").with_route(
                MailRoute(uid=uid, uidvalidity=uidvalidity)
            ),
        )

    def _judged(
        self,
        arrival: Arrival,
        verdict: SenderVerdict,
        native_id: str,
        person: str,
        *,
        taken_at: datetime,
    ) -> tuple[str, str, AnswerSlot]:
        """Return the reasons for no answer and for quarantine (both "" for an answer), and its time."""
        now = AnswerSlot()
        if _is_unread(arrival) and (verdict.refused is not None or self._read_only(person)):
            return f"{MailRefused.UNREADABLE}_{arrival.trouble}", "", now
        at = arrival.received_at
        if self._read_only(person) and verdict.verified and verdict.refused in _READABLE:
            return "", "", now
        why = verdict.refused
        if why is None:
            place = self._place(native_id, verdict.address, at, taken_at)
            if place is not None:
                return "", "", place
            why = MailRefused.TOO_MANY
        if why in _FOR_A_PERSON and "@" in person:
            # Everybody can send these in the name of anybody, so there is only so much room for them. Of
            # people who would not be let in the gateway keeps nothing, so they take none of it; and who is
            # let in by name shares nothing with the many whom a pattern means.
            share = self.matching_pattern(person) or person
            room = not self._welcome(person) or self._quarantined.admit(native_id, sender=share, at=at)
            return ("", str(why), now) if room else (str(why), "", now)
        return str(why), "", now

    def _place(self, native_id: str, sender: str, at: datetime, now: datetime) -> AnswerSlot | None:
        """Return when a mail is answered; None if too many of its sender wait already."""
        if self._is_owner(sender):
            return AnswerSlot()
        place = self._limiter.reserve(native_id, sender=sender, at=at, now=now)
        wait_s = place.wait_s if place else DAY_S
        if wait_s > HOUR_S and self._welcome(sender):
            self._crowded(sender, wait_s)
        return place

    def matching_pattern(self, address: str) -> str:
        """The pattern of ``allow_from`` that admits an address; empty if its name does, or nothing."""
        patterns = (*self._allow_from, *self._ingest_only_from)
        if address in patterns:
            return ""
        fitting = (entry for entry in patterns if "*" in entry and fnmatch.fnmatchcase(address, entry))
        return next(fitting, "")

    def _read_only(self, address: str) -> bool:
        return is_ingest_only(address, self._ingest_only_from)


def _how_to_answer(
    context: MessageContext, arrival: Arrival, verdict: SenderVerdict, place: AnswerSlot, *, read_only: bool
) -> MessageContext:
    """Return the context that says if there is an apology, no answer, or a later one."""
    return replace(
        context,
        unreadable=apology_of(arrival.trouble) if _is_unread(arrival) else "",
        read_only=read_only or (arrival.mail is not None and arrival.mail.wants_no_answer),
        allowed_here=True if read_only and verdict.verified else None,
        wait_s=place.wait_s,
        tell_wait=bool(place.wait_s) and place.first,
    )


def _is_unread(arrival: Arrival) -> bool:
    """Return True if no part of the mail's content is known."""
    return arrival.mail is None and arrival.trouble != TOO_LARGE


def is_ingest_only(address: str, patterns: Iterable[str]) -> bool:
    """Return True if ``ingest_only_from`` names an address."""
    return any(_fits(address, pattern) for pattern in patterns)


def _fits(address: str, pattern: str) -> bool:
    """``name*@domain``: the star stands for anything before the @ and for nothing behind it."""
    local, _, domain = address.rpartition("@")
    wanted, _, where = pattern.rpartition("@")
    if domain != where:
        return False
    return local.startswith(wanted[:-1]) if wanted.endswith("*") else local == wanted
