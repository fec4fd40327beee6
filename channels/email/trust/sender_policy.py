"""
Decides who wrote a mail and whether it may be answered, by mail and settings alone. Pure. Identity is the
only address in the only From field, verified by a trusted server's topmost Authentication-Results, a secret
tag of our address, or a DKIM signature (``dkim_alignment``); a "forged" of the trusted server overrides all.
A verdict that rests on a signature alone must cover what is read and name us in To or Cc, else the mail is a
copy. Mail that names itself automatic gets no answer (RFC 3834, RFC 2369, RFC 2919: ``Auto-Submitted``,
``Precedence``, ``List-Id``, ``List-Post``, null sender); fields that people's mails have too do not count,
and limits end other loops.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from channels.email.parse.mail_addresses import (
    AddressInvalid,
    MailboxAddress,
    find_addresses,
    find_in_order,
    mailboxes_or_none,
    parse_mailboxes,
    without_tag,
)
from channels.email.parse.mail_threads import is_own_id, own_id_of
from channels.email.parse.mime import FOR_WHOM, Headers
from channels.email.trust.auth_results import AuthVerdict as Told
from channels.email.trust.auth_results import Word, verdict_of, was_submitted_directly
from channels.email.trust.dkim import SignatureClaim

_NOT_ASKED, _SECRET = "not asked for", "secret address"

_PRECEDENCE = {"bulk", "list", "junk"}
_DELIVERED_TO = ("delivered-to", "x-original-to", "envelope-to", "x-envelope-to", "x-forwarded-to")


class MailRefused(StrEnum):
    """The reasons why a mail is not answered."""

    OWN_COPY = "own_copy"
    """Our own mail, come back to us: a copy for the Sent folder."""
    OWN_ADDRESS = "from_own_address"
    NO_SENDER = "no_single_sender"
    NOT_VERIFIED = "sender_not_verified"
    AUTOMATIC = "automatic_mail"
    MAILING_LIST = "mailing_list"
    BOUNCE = "bounce"
    NOT_ADDRESSED = "not_addressed_to_us"
    TOO_MANY = "over_limit"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class OwnIdentity:
    """The bot's own addresses, and the servers that it trusts."""

    address: str
    trusted_authserv_ids: tuple[str, ...] = ()
    authentication_needed: bool = True
    headerless: bool = False
    """Whether the topmost Authentication-Results counts if it names no server."""
    subaddress_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By sender: the tag of our address that proves him."""
    listed: Callable[[str], bool] = field(default=lambda _: False, repr=False, compare=False)
    """Whether an address is among those who may write, and so may be named by them as the place to answer."""
    names_colleagues: Callable[[str], bool] = field(default=lambda _: True, repr=False, compare=False)
    """Whether a sender may have the answer sent to anybody of his own domain."""
    ingested: Callable[[str], bool] = field(default=lambda _: False, repr=False, compare=False)
    """Whose mail is only read: it may be for others, and be sent by a service in their name."""


@dataclass(frozen=True, slots=True)
class SenderVerdict:
    """
    The evidence about a sender, and why the mail must not be answered.

    ``address`` is empty without a single sender; an answer goes to ``reply_to``; ``others``: more people get
    mail or answer; ``authentication`` names the proof, ``doubt`` why a seeming one fails.
    """

    address: str
    name: str
    verified: bool
    reply_to: str
    others: bool = False
    refused: MailRefused | None = None
    authentication: str = ""
    doubt: str = ""

    @property
    def is_redirected(self) -> bool:
        """Return True if the answer goes to another mailbox: no server vouches for Reply-To."""
        return without_tag(self.reply_to) != without_tag(self.address)


@dataclass(frozen=True, slots=True)
class _Authentication:
    """The proof of the sender, its denial, or the doubt about a trusted verdict."""

    verification: str = ""
    denied: bool = False
    doubt: str = ""


def inspect(
    headers: Headers, own: OwnIdentity, *, claims: Sequence[SignatureClaim] = (), verification: str = ""
) -> SenderVerdict:
    """Judge a mail's sender by its header and further ``verification`` (`open_question`)."""
    sender = _single_sender(headers)
    if sender is None:
        return SenderVerdict("", "", verified=False, reply_to="", refused=MailRefused.NO_SENDER)
    found = _authentication(headers, sender.address, own, claims)
    authentication = found.verification if found.denied else found.verification or verification
    verified = bool(authentication)
    refused = _own_mail(headers, sender.address, own) or _robot(headers)
    if refused is MailRefused.OWN_COPY and found.denied:
        refused = MailRefused.OWN_ADDRESS
    if refused is None and not verified:
        refused = MailRefused.NOT_VERIFIED
    if refused is None:
        refused = _not_for_us(headers, own)
    verdict = SenderVerdict(
        sender.address,
        sender.name[:200],
        verified=verified,
        reply_to=_reply_target(headers, sender.address, own),
        others=_others(headers, sender.address, own),
        refused=refused,
        authentication=authentication,
        doubt="" if verified else found.doubt,
    )
    return replace(verdict, others=True) if verdict.is_redirected else verdict


def open_question(
    headers: Headers, own: OwnIdentity, *, claims: Sequence[SignatureClaim] = (), robots_too: bool = False
) -> str | None:
    """
    The sender of a mail that would be answered if the sender were proven; None for all others.

    A robot (unless ``robots_too``), a mail that is proven already and one that our provider calls forged need
    no further proof.
    """
    sender = _single_sender(headers)
    if sender is None or _own_mail(headers, sender.address, own):
        return None
    if _robot(headers) and not robots_too:
        return None
    found = _authentication(headers, sender.address, own, claims)
    return None if found.verification or found.denied or _not_for_us(headers, own) else sender.address


def strength(authentication: str) -> int | None:
    """
    Return the strength of an authentication that is weaker than a server's word or a signature.

    Anybody who has seen a secret address can write to it. None: it is as strong as it can be.
    """
    return {"": 0, _NOT_ASKED: 0, _SECRET: 1}.get(authentication)


def sender_of(headers: Headers) -> str:
    """The single sender, proven or not, whatever names stand beside the address; empty if there is none."""
    sender = _single_sender(headers)
    return "" if sender is None else sender.address


def claimed_senders(headers: Headers) -> list[str]:
    """Everybody whom the From fields of such a mail can mean: for quarantine, never identity."""
    found: list[str] = []
    for value in headers.all("from"):
        found += [match.lower() for match in find_in_order(value) if match.lower() not in found]
    return found[:5]


def _single_sender(headers: Headers) -> MailboxAddress | None:
    values = headers.all("from")
    if len(values) != 1:
        return None
    try:
        mailboxes = parse_mailboxes(values[0])
    except AddressInvalid:
        return None
    return mailboxes[0] if len(mailboxes) == 1 else None


def _authentication(
    headers: Headers, sender: str, own: OwnIdentity, claims: Sequence[SignatureClaim]
) -> _Authentication:
    if not own.authentication_needed:
        return _Authentication(_NOT_ASKED)
    told = verdict_of(
        headers.all("authentication-results"),
        trusted=own.trusted_authserv_ids,
        domain=sender.rpartition("@")[2],
        headerless=own.headerless,
    )
    if told.word is Word.DENIED:
        return _Authentication(denied=True)
    doubt = _doubt(headers, told, sender, own, claims) if told.word is Word.VERIFIED else ""
    if told.word is Word.VERIFIED and not doubt:
        return _Authentication(f"told by {told.server}")
    return _Authentication(_SECRET if _knows_secret(headers, sender, own) else "", doubt=doubt)


def _doubt(
    headers: Headers, told: Told, sender: str, own: OwnIdentity, claims: Sequence[SignatureClaim]
) -> str:
    """Return why a trusted server's verdict may be about another mail, or ""."""
    only_read = own.ingested(sender)
    if was_submitted_directly(
        headers.consecutive_values("authentication-results", told.number), sender, any_mailbox=only_read
    ):
        return ""
    # The server does not tell which signature it means, so each that it may mean must do. Where DMARC passed
    # without any, it was by the way that the mail came.
    domain = sender.rpartition("@")[2]
    meant = [claim for claim in claims if not claim.domain or _one_organisation(claim.domain, domain)]
    if not meant and not told.by_dmarc:
        return "no signature of the domain is there"
    for claim in meant:
        if claim.lacks:
            return claim.lacks
        if not only_read and not claim.names(own.address):
            return "the signed mail is not addressed to us"
    return ""


def _one_organisation(one: str, other: str) -> bool:
    """Return True if two domains may belong together; errs on the side of True."""
    return one.split(".")[-2:] == other.split(".")[-2:]


def _knows_secret(headers: Headers, sender: str, own: OwnIdentity) -> bool:
    """
    Return True if the mail was sent to the secret address that this sender was given.

    Every candidate is compared in constant time, so that timing reveals nothing.
    """
    secret = own.subaddress_secrets.get(sender)
    if not secret:
        return False
    mine, known = without_tag(own.address), False
    for name in ("to", "cc", *_DELIVERED_TO):
        for value in headers.all(name):
            for address in find_in_order(value)[:200]:
                if without_tag(address.lower()) == mine:
                    tag = address.lower().rpartition("@")[0].partition("+")[2]
                    known |= hmac.compare_digest(tag.encode(), secret.encode())
    return known


def _own_mail(headers: Headers, sender: str, own: OwnIdentity) -> MailRefused | None:
    is_ours = without_tag(sender) == without_tag(own.address)
    if is_ours:
        is_copy = own_id_of(headers, account=own.address) is not None
        return MailRefused.OWN_COPY if is_copy else MailRefused.OWN_ADDRESS
    # With a foreign From it is somebody who plays with our ids; it gets no answer either.
    plays = is_own_id(headers.message_id() or "", account=own.address)
    return MailRefused.AUTOMATIC if plays else None


def _robot(headers: Headers) -> MailRefused | None:
    is_report = headers.media_type() == "multipart/report"
    if is_report or any(value.strip() == "<>" for value in headers.all("return-path")):
        return MailRefused.BOUNCE
    if any(headers.first(name) is not None for name in ("list-id", "list-post")):
        return MailRefused.MAILING_LIST
    if _says_automatic(headers):
        return MailRefused.AUTOMATIC
    return None


def _says_automatic(headers: Headers) -> bool:
    def words(name: str) -> set[str]:
        return {re.split(r"[\s;,(]", value.strip().lower(), maxsplit=1)[0] for value in headers.all(name)}

    return bool(words("auto-submitted") - {"", "no"} or words("precedence") & _PRECEDENCE)


def _not_for_us(headers: Headers, own: OwnIdentity) -> MailRefused | None:
    mine = without_tag(own.address)
    for name in ("to", "cc", *_DELIVERED_TO):
        for value in headers.all(name):
            if any(without_tag(address) == mine for address in find_addresses(value)):
                return None
    return MailRefused.NOT_ADDRESSED


def _others(headers: Headers, sender: str, own: OwnIdentity) -> bool:
    """Return True if others may have received the mail; unreadable recipients count as others."""
    if headers.doubtful.intersection(FOR_WHOM):
        return True
    named = mailboxes_or_none(value for name in FOR_WHOM for value in headers.all(name))
    # What is behind another's plus address, only the server of its domain knows: a list, perhaps.
    return named is None or any(
        without_tag(address) != without_tag(own.address) and address != sender for address in named
    )


def _reply_target(headers: Headers, sender: str, own: OwnIdentity) -> str:
    """Return Reply-To if it is the sender's mailbox, listed, or in a domain that may name it; else ""."""
    values = headers.all("reply-to")
    if len(values) != 1:
        return sender
    try:
        mailboxes = parse_mailboxes(values[0])
    except AddressInvalid:
        return sender
    if len(mailboxes) != 1:
        return sender
    asked = mailboxes[0].address
    same_domain = asked.rpartition("@")[2] == sender.rpartition("@")[2]
    own_mailbox = without_tag(asked) == without_tag(sender)
    theirs = own_mailbox or own.listed(asked) or (same_domain and own.names_colleagues(sender))
    return asked if theirs and without_tag(asked) != without_tag(own.address) else sender
