"""
Assigns a mail to a conversation, and makes the Message-IDs of our own mails. Pure. A thread's *tag* is 24 hex
digits, the hash of its first mail's id: the head of References, or, for programs that send only In-Reply-To,
the tag in our own id ``<squidbot.{outbox row}.{thread tag}@{our domain}>``, the same for every attempt. A
session is a thread *and* the person in it: ids are known to all recipients of copies, who must not be
answered from others' history.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from agent_core.messages import SessionKey
from channels.email.parse.mime import Headers

MAX_REFERENCES = 20
OWN_ID_PREFIX = "<squidbot."
OWN_ID_FIELD = "X-Squidbot-Message-ID"
"""Says our Message-ID again, for servers that set their own."""
SEND_COPY_TAG = "sent"
"""Copies of our own mails come to ``local+sent@domain``."""
_OWN = re.compile(r"<squidbot\.[0-9a-f]{24}\.([0-9a-f]{24})@([A-Za-z0-9.-]{1,253})>")
_CONVERSATION = re.compile(r"thread-([0-9a-f]{24})")


def message_id_of(outbound_id: str, session: SessionKey, *, account: str) -> str:
    """The Message-ID of one outgoing mail, the same in every attempt."""
    match = _CONVERSATION.fullmatch(session.conversation)
    tag = match.group(1) if match else _hash(str(session))[:24]
    domain = account.rpartition("@")[2]
    return f"{_own_beginning(outbound_id, account)}{tag}@{domain}>"


def names_outbound(message_id: str, outbound_id: str, *, account: str) -> bool:
    """Return True if a Message-ID belongs to an outgoing mail, whatever its thread."""
    return is_own_id(message_id, account=account) and message_id.startswith(
        _own_beginning(outbound_id, account)
    )


def _own_beginning(outbound_id: str, account: str) -> str:
    return f"{OWN_ID_PREFIX}{_hash(account, outbound_id)[:24]}."


def is_own_id(message_id: str, *, account: str) -> bool:
    """Return True if a Message-ID has the form of our own."""
    match = _OWN.fullmatch(message_id)
    return match is not None and match.group(2).lower() == account.rpartition("@")[2].lower()


def own_id_of(headers: Headers, *, account: str) -> str | None:
    """Our id of a mail that seems to be one of ours, whatever Message-ID a server gave it; or None."""
    for each in (headers.message_id(), (headers.first(OWN_ID_FIELD.lower()) or "").strip()):
        if each and is_own_id(each, account=account):
            return each
    return None


def thread_tag(message_id: str, references: Sequence[str], *, account: str) -> str:
    """The tag of the thread that a mail belongs to."""
    for reference in reversed(references):
        match = _OWN.fullmatch(reference)
        if match is not None and is_own_id(reference, account=account):
            return match.group(1)
    return _hash(references[0] if references else message_id)[:24]


def session_of(channel: str, tag: str, person: str) -> SessionKey:
    """The session of one person in one thread."""
    return SessionKey(channel, f"thread-{tag}", person)


def tag_of_address(word: str) -> str:
    """The tag of the conversation that has an address of its own: ``local+word@domain``."""
    return _hash("plus", word)[:24]


def session_about(channel: str, topic: str, person: str) -> SessionKey:
    """The session of a thread that we begin: always the same one for a topic and a person."""
    return session_of(channel, _hash("topic", topic, person)[:24], person)


def recipient_of(session: SessionKey) -> str | None:
    """The recipient in a session if no mail is answered."""
    for part in (session.thread, session.conversation):
        if part is not None and "@" in part and "<" not in part:
            return part
    return None


def native_id_of(
    message_id: str | None, sender: str, digest: str, *, verified: bool, refused: bool = False
) -> str:
    """
    Return the identity of a mail; a second copy has the same.

    It contains the sender and if they were proven, so that a forged mail cannot use up a real one's id.
    ``refused``: unsigned fields keep it from an answer, so that a copy with such fields is another mail.
    ``digest`` identifies mails without a usable Message-ID.
    """
    kind = ("refused" if refused else "mail") if verified else "unproven"
    if message_id is None:
        return f"{kind}-digest-{_hash(sender, digest)[:40]}"
    return f"{kind}-{_hash(message_id, sender)[:40]}"


def reply_references(references: Sequence[str], message_id: str | None) -> list[str]:
    """The References of an answer: the first id, then the newest ones, the answered mail last."""
    chain = [*references, *([message_id] if message_id else [])]
    chain = list(dict.fromkeys(chain))
    return chain if len(chain) <= MAX_REFERENCES + 1 else [chain[0], *chain[-MAX_REFERENCES:]]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
