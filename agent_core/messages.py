"""
The messages between a channel and everything else: the narrow interface of squidbot.

Channels import this module and nothing else of agent_core; everything here is frozen, versioned and can be
written to a journal as JSON and read back by a later version. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

_UNSAFE_IN_KEY = re.compile(r"[^A-Za-z0-9!@#$&'*+,.;<>^_`{|}~\-=]")
_UNSAFE_IN_FILE = re.compile(r"[^A-Za-z0-9_\-]")
_FILE_NAME_LIMIT = 150
_KEYS_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class SessionKey:
    """
    The key of one conversation: the unit of order, of history and of summary.

    Args:
        channel: The configured name, such as ``matrix``.
        conversation: The channel's name of it: a room id, the id of a thread's root mail.
        thread: The thread in it, on channels with separate threads.

    ``str()`` and `parse` are exact inverses; files are named by `file_name`.
    """

    channel: str
    conversation: str
    thread: str | None = None

    def __post_init__(self) -> None:
        if not self.channel or not self.conversation or self.thread == "":
            raise ValueError("a session key has a channel, a conversation, and no empty thread")

    def __str__(self) -> str:
        return _text_of(self)

    @classmethod
    def parse(cls, text: str) -> SessionKey:
        """Read what ``str()`` wrote. Raises `ValueError`: the text is not a session key."""
        return _key_of(text)

    @property
    def file_name(self) -> str:
        """
        A name for files: no separators, no leading dot, at most 150 characters, different for every key.

        Short keys are encoded reversibly. A long one keeps its beginning and ends in a hash after ``=~``,
        which the reversible form never contains; its full text is in the session's meta file.
        """
        parts = [self.channel, self.conversation] + ([self.thread] if self.thread is not None else [])
        name = "=.".join(_escape(part, "=", _UNSAFE_IN_FILE) for part in parts)
        return name if len(name) <= _FILE_NAME_LIMIT else self._hashed(name)

    @property
    def caseless_name(self) -> str:
        """
        A `file_name` that is different for every key also where upper and lower case are the same.

        A name with capitals gets the hash of a long one; both forms are names of this session.
        """
        name = self.file_name
        return name if name == name.lower() or "=~" in name else self._hashed(name)

    def is_named(self, name: str) -> bool:
        """Return True if files with this name belong to this session."""
        return name in (self.file_name, self.caseless_name)

    def _hashed(self, name: str) -> str:
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:40]
        return f"{name[: _FILE_NAME_LIMIT - 42]}=~{digest}"

    @classmethod
    def from_file_name(cls, name: str) -> SessionKey:
        """Read what `file_name` wrote. Raises ValueError for a shortened or invalid name."""
        if "=~" in name:
            raise ValueError(f"a shortened name cannot be read back: {name!r}")
        parts = [_unescape(part, "=") for part in name.split("=.")]
        if len(parts) not in (2, 3):
            raise ValueError(f"not the file name of a session: {name!r}")
        key = cls(*parts)
        if key.file_name != name:
            raise ValueError(f"not the file name of a session: {name!r}")
        return key


# A conversation's key is written and read several times for each of its messages. Both keep 700 bytes for it.
@lru_cache(maxsize=_KEYS_REMEMBERED)
def _text_of(key: SessionKey) -> str:
    parts = [key.channel, key.conversation] + ([key.thread] if key.thread is not None else [])
    return "/".join(_escape(part, "%", _UNSAFE_IN_KEY) for part in parts)


@lru_cache(maxsize=_KEYS_REMEMBERED)
def _key_of(text: str) -> SessionKey:
    parts = [_unescape(part, "%") for part in text.split("/")]
    if len(parts) not in (2, 3):
        raise ValueError(f"not a session key: {text!r}")
    key = SessionKey(*parts)
    if str(key) != text:
        raise ValueError(f"not a session key in its canonical form: {text!r}")
    return key


def _escape(text: str, mark: str, unsafe: re.Pattern[str]) -> str:
    return unsafe.sub(lambda found: "".join(f"{mark}{byte:02x}" for byte in _raw(found[0])), text)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _unescape(text: str, mark: str) -> str:
    first, *others = text.split(mark)
    out = bytearray(_raw(first))
    for part in others:
        out += bytes.fromhex(part[:2])
        out += _raw(part[2:])
    return out.decode("utf-8", "surrogatepass")


SessionKeyField = Annotated[
    SessionKey,
    BeforeValidator(lambda value: SessionKey.parse(value) if isinstance(value, str) else value),
    PlainSerializer(str, return_type=str),
]
"""A `SessionKey` as a field of a pydantic model: its text in JSON."""


class Audience(StrEnum):
    """The readers of a conversation, as far as the channel can tell."""

    DIRECT = "direct"
    """One person and the bot."""
    GROUP = "group"
    """Several people, now or later."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Sender(_Frozen):
    """
    The author of a message.

    ``address`` identifies (an MXID, a mail address, ``local`` on the terminal); ``name`` is chosen by the
    sender and never compared. ``verified``: there is evidence against forgery; nothing is trusted without it.
    """

    address: str
    name: str = ""
    verified: bool = False


class Attachment(_Frozen):
    """
    A file that came with a message or goes out with one. ``path`` is relative to the home folder.

    ``name`` is what people see, safe to show and to use as a file name; ``media_type`` is what the content
    was found to be where that can be told, else what the sender said; ``sha256`` (hex) names the content.
    """

    name: str
    media_type: str
    size_bytes: int
    path: str
    sha256: str = ""

    @property
    def id(self) -> str:
        """The attachment's id in a conversation: the beginning of the hash, the same for the same content."""
        return self.sha256[:12]


OTHERS_WORDS = "others_words"
"""In the context of a message: its text, or what stands above it, may have words of others in it."""


SPOKEN = "spoken"
"""
In the context of a message: the hashes of those of its files that were recorded as voice messages.

With `OTHERS_WORDS` they are earlier ones, which it is about.
"""


MENTIONS = "mentions"
"""In the context of a scheduled job: whom it reminds, as in `OutboundMessage.rings_for`."""
EVERYBODY = "@room"


SPEECH = "speech"
KNOWN_WORDS = "known_words"
"""
In the context of a question that is asked anew: what was heard in its sound files before, by their digests.
"""
"""
In the context of an answer that is to be spoken, or is: what is known of it (``duration_ms``, ``waveform``).
"""


NOT_NAMED = "not_named"
"""In the context of a message: it comes to the bot as everything in its room does, and does not name it."""


DONE_BEFORE = "done_before"
"""In the context of a question that is asked anew: how often which tool was used to answer it before."""


BY_EDIT = " asked"
"""
Behind the id of a message that was said to others, and is a question since its sender has edited it: both
together are the id of the question, and an amendment of the one is an amendment of the other.
"""


COPIES = "copies"
"""In the context of a question that is asked anew: the native ids of the messages whose words it has."""


EDITED = "edited"
"""In the context of a message that a turn had taken already: what its sender has made of its text since."""


REDACTED = "redacted"
"""In the context of such a message: its sender has taken it back since."""


NOTED = "noted"
"""
In the context of a message that is only noted in the history of its conversation, where the next question
finds it: nobody is answered. Its value has the fields of the line that are not those of a question: what it
takes back (``undoes``), or to which line it belongs (``turn``, ``id``).
"""


BELOW_THE_MAIL = "below the mail"
"""The sender of what a mail program has put below a mail: nobody has proved who wrote it."""


class Background(_Frozen):
    """
    Words from before a message that help to understand it; never a question by themselves.

    ``kind``: ``forwarded`` is somebody else's message that was handed on with it, ``quoted`` is what the
    message answers, ``thread`` how its thread began, ``talk`` what was said meanwhile in a group without
    being meant for the bot.
    """

    kind: Literal["quoted", "thread", "talk", "forwarded"]
    sender: str
    name: str = ""
    text: str


class InboundMessage(_Frozen):
    """
    One message as a channel received it.

    ``(channel, account, native_id)`` is its identity: a second message with the same one is the same
    message. ``context`` is the channel's own note to itself, given back with every answer (the event to
    reply to, the References of a mail). Others read of it what is said where they do, and `OTHERS_WORDS`.
    """

    version: Literal[1] = 1
    channel: str
    account: str
    native_id: str
    session: SessionKeyField
    sender: Sender
    text: str
    received_at: AwareDatetime
    audience: Audience = Audience.DIRECT
    addressed: bool = True
    """False for talk in a group that is not meant for the bot: kept for context, never answered."""
    kind: Literal["message", "tick", "reaction", "job", "background_job"] = "message"
    """
    A ``reaction`` is a sign put to an earlier message (its ``text``); nobody is answered. A ``tick`` is
    written by the clock, a ``job`` by the schedule for the sender, who has wished for it earlier, and a
    ``background_job`` by a turn that has started it for the sender.
    """
    attachments: tuple[Attachment, ...] = ()
    context: dict[str, Any] = Field(default_factory=dict)
    background: tuple[Background, ...] = ()
    """What the model is shown besides the text, marked as said by others; bounded by the channel."""


class Amendment(_Frozen):
    """
    A change of an earlier message, such as an edit; it is not a message and leaves no row.

    ``replace``: the sender has edited the message ``native_id``, which now says ``text``, and with
    ``names_bot`` that it is meant for the bot (see `NOT_NAMED`). ``withdraw``: the
    sender has taken it back. ``leave``: the bot is no longer in ``session.conversation``. ``stop``: what
    waits or runs in ``session`` is not to be answered, of ``sender`` if one is named, else of everybody.
    ``bounce``: what the server took from us as ``native_id`` did not arrive after all, for the reason
    ``text``.
    """

    kind: Literal["replace", "withdraw", "leave", "stop", "bounce"]
    native_id: str = ""
    session: SessionKeyField | None = None
    sender: str = ""
    text: str = ""
    names_bot: bool = False


class OutboundKind(StrEnum):
    """The reason for sending; channels may show them differently, and only a reply threads to a question."""

    REPLY = "reply"
    APOLOGY = "apology"
    NOTICE = "notice"
    ALERT = "alert"
    MESSAGE = "message"
    """Something that somebody wants said, to a person or in a room; it answers nothing."""


class OutboundMessage(_Frozen):
    """
    One message on its way out, made from one row of the outbox.

    ``id`` is fixed before the first try and the same in every retry: a channel derives from it whatever its
    server uses to recognise a repetition (a Matrix transaction id, a Message-ID). ``text`` is Markdown.
    """

    version: Literal[1] = 1
    id: str
    channel: str
    account: str
    session: SessionKeyField
    text: str
    created_at: AwareDatetime
    kind: OutboundKind = OutboundKind.REPLY
    attachments: tuple[Attachment, ...] = ()
    context: dict[str, Any] = Field(default_factory=dict)
    """The `InboundMessage.context` of the message that is answered; empty if there is none."""
    rings_for: tuple[str, ...] | None = None
    """
    The addresses of those whom it notifies, even as a notice, or `EVERYBODY` alone; None: nobody by name.
    """
    remembered: bool = False
    """Once its server has it, it becomes a line of the history of the conversation in which it arrived."""
    maybe_sent: bool = Field(default=False, exclude=True)
    """An earlier try may have arrived. Said for each try by whoever delivers, and never stored."""
