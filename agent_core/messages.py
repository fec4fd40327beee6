"""
The messages between a channel and everything else: the narrow interface of squidbot. Channels import this
module and nothing else of agent_core; everything here is frozen, versioned and can be written to a journal as
JSON and read back by a later version. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

_UNSAFE_IN_KEY = re.compile(r"[^A-Za-z0-9!@#$&'*+,.;<>^_`{|}~\-=]")
_UNSAFE_IN_FILE = re.compile(r"[^A-Za-z0-9_\-]")
_FILE_NAME_LIMIT = 150
_KEYS_REMEMBERED = 1024
_Route = TypeVar("_Route")


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
        if name == self.file_name:
            return True  # most names, of which a list may have thousands
        return name == self.caseless_name

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
    return unsafe.sub(lambda found: f"{mark}{_raw(found[0]).hex(mark)}", text)


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


EVERYBODY = "@room"
"""Instead of addresses: all who read along."""
BY_EDIT = " asked"
"""
Behind the id of a message that was said to others, and is a question since its sender has edited it: both
together are the id of the question, and an amendment of the one is an amendment of the other.
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


class _Sparse:
    """A record whose JSON leaves out what has its default."""

    @model_serializer(mode="plain")
    def _changed(self) -> dict[str, Any]:
        changed: dict[str, Any] = _sparse(self)
        return changed


def _sparse(value: Any) -> Any:
    """Return the value for JSON: of a `_Sparse`, also inside others, what has not its default."""
    if isinstance(value, _Sparse):
        bare = _bare(type(value))
        return {name: _sparse(each) for name, each in vars(value).items() if each != bare[name]}
    return tuple(map(_sparse, value)) if isinstance(value, tuple) else value


_BARE: dict[type[Any], Mapping[str, Any]] = {}


def _bare(kind: type[Any]) -> Mapping[str, Any]:
    """The defaults of a record, by the names of its fields."""
    if kind not in _BARE:
        bare = kind()
        _BARE[kind] = {each.name: getattr(bare, each.name) for each in fields(bare)}
    return _BARE[kind]


@dataclass(frozen=True, kw_only=True)
class Speech(_Sparse):
    """An answer that is to be spoken or is: for whom, and duration and waveform of a voice message."""

    owner: bool = False  # the owner is among those who asked
    duration_ms: int | None = None
    waveform: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Quotation(_Sparse):
    """The part of a message that an answer repeats, and its date as its sender wrote it."""

    text: str = ""
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class FileTranscript(_Sparse):
    """The words of a sound file, or why there are none."""

    name: str = ""
    text: str = ""
    seconds: float = 0.0
    unsure: bool = False
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class LineNote(_Sparse):
    """The place in the history of a message that is only noted there: its line, or the line it takes back."""

    turn: str | None = None
    id: str = ""
    undoes: str = ""


@dataclass(frozen=True, kw_only=True)
class JobNote(_Sparse):
    """
    The scheduled or background job of a message; ``origins`` are read by `provenance.from_json`. A ``report``
    has words of its own, of a webhook or a watch, which no later run says again.
    """

    id: str = ""
    kind: str = ""
    late: bool = False
    forced: bool = False
    report: bool = False
    origins: JsonValue = None


@dataclass(frozen=True, kw_only=True)
class OrderNote(_Sparse):
    """The order for a background job, see ``gateway.store.background_job_rows.Order``."""

    place: str = ""
    name: str = ""
    started_by: str = ""
    command: bool = False
    origins: JsonValue = None
    by_heartbeat: bool = False
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class MessageNotes(_Sparse):
    """The gateway's own notes with a message; the inbox drops what a channel put here."""

    admitted: bool = False  # a person has released it from quarantine; nothing proves its sender
    # An answer to questions:
    answers: dict[str, str] = field(default_factory=dict)  # the questions that it answers, with their tools
    settled: str = ""  # what counts for each of them, by name, joined by commas
    granted: str = ""
    misread: str = ""  # it decides nothing, and this is the reply
    more: bool = False  # its text is what was written below the answer, a message like any other
    is_command: bool = False  # it answers a command, so it asks nothing
    language: str = ""  # of what is said besides its text when it is sent; empty: that of the home
    approves: tuple[str, ...] = ()  # the items that an answer to this notice decides
    # What has become of it:
    stopped: int = 0  # how many messages this ``!stop`` withdrew
    edited: str | None = None  # the newest text of a message that a turn had taken already
    edit_count: int = 0  # how often it was edited after its answer
    redacted: bool = False
    begun_anew: int = 0  # how many turns with it were ended by an edit
    # A question that is asked anew:
    asked_by: int | None = None  # the row of the command that asks it
    copies: tuple[str, ...] = ()  # the native ids of the messages whose words it has
    replaces: tuple[str, ...] | None = None
    """The provider ids of its earlier answer, part by part; None: that stays."""
    done_before: dict[str, int] = field(default_factory=dict)
    """How often which tool was used to answer it before."""
    known_words: dict[str, dict[str, Any]] | None = None
    """What was heard in its sound files before, by their digests."""
    heard: tuple[FileTranscript, ...] = ()
    # A job, and what it made:
    job: JobNote | None = None
    background: OrderNote | None = None
    mentions: tuple[str, ...] = ()
    """Whom a reminder reminds, as in `OutboundMessage.rings_for`; empty: its person."""
    origins: JsonValue = None
    """The origins of the text, see `provenance.from_json`; None: the words of its person."""
    scope: str | None = None  # the scope that alone may see the line that it becomes, see `Message.scope`


@dataclass(frozen=True, kw_only=True)
class MessageContext(_Sparse):
    """
    The channel's knowledge of a message besides its words, given back with every answer.

    The gateway reads the fields. ``route`` is the channel's own (the event to reply to, the References of a
    mail), JSON that nobody else opens.
    """

    # Whether and when it is answered:
    refused: str = ""  # a reason: it is only remembered as seen
    refusal: str = ""  # all that its sender is told, instead of an answer
    quarantine: str = ""  # a reason: it is kept until a person lets it in
    invitation: str = ""  # it is an invitation to this place and not a message
    doubt: str = ""  # a reason, for people, why its sender is not verified
    proof: int | None = None
    """How well its sender is proved, compared with others of this channel; None: as well as possible."""
    allowed_here: bool | None = None
    """The rule of this very place for a proven sender; None: there is none beside ``allow_from``."""
    moderator: bool = False  # its sender has a moderator's rights among those who read along
    read_only: bool = False  # it is for the history, and nobody is answered
    not_named: bool = False  # it comes to the bot as everything in its room does, and does not name it
    unreadable: str = ""  # a sentence, all that its sender is told of a message that could not be read
    wait_s: float = 0.0  # it is answered no sooner than so many seconds after it was accepted
    tell_wait: bool = False
    noted: LineNote | None = None
    """It is only noted in the history, where the next question finds it; nobody is answered."""
    # What it is about:
    subject: str | None = None  # None: this channel has no subjects
    reply_to: str = ""  # the recipient of answers, if that is not the sender
    cc: tuple[str, ...] = ()
    also_to: tuple[str, ...] = ()  # who else has got it, as its sender says; answered or not
    names: tuple[str, ...] = ()  # names by which people here address the bot
    in_reply_to: str = ""  # the native id of the message that it answers
    outbound: str = ""  # the id of the message of ours (`OutboundMessage.id`) that it answers or reacts to
    seen_at: AwareDatetime | None = None
    """Its place among what was said here, whatever others say of its time."""
    visible_from: AwareDatetime | None = None
    """Its sender came then, and sees nothing of what was said before."""
    spoken: tuple[str, ...] = ()  # the hashes of those of its files that were recorded as voice messages
    """With ``others_words`` they are earlier ones, which it is about."""
    others_words: bool = False  # its text, or what stands above it, may have words of others in it
    quoted: Quotation | None = None
    watched: bool = False  # a tick that shows what a watched command has written
    forced: bool = False  # a tick that a person wants now
    # An answer or notice:
    person: str = ""  # for this person alone, wherever the channel finds them
    part: int = 0  # 0 is the first part of an answer
    edits: str = ""  # the provider id that it takes the place of
    headline: str = ""  # its subject, on channels that have one
    itip: str = ""  # a reply or counter-proposal to an invitation (iCalendar) that a mail has beside its text
    speech: Speech | None = None
    left_over: str = ""  # the native id of a message of which nothing else was kept
    route: dict[str, Any] = field(default_factory=dict)
    notes: MessageNotes = field(default_factory=MessageNotes)

    def read_route(self, kind: type[_Route]) -> _Route:
        """Return the route as a dataclass of this kind; its defaults if it is something else."""
        try:
            route: _Route = _adapter(kind).validate_python(self.route)  # type: ignore[arg-type]
        except ValidationError:
            return kind()
        return route

    def with_route(self, route: object) -> MessageContext:
        """Return it with the fields of a dataclass, except its defaults, as its route."""
        adapter = _adapter(type(route))  # type: ignore[arg-type]
        return replace(self, route=adapter.dump_python(route, exclude_defaults=True))


@lru_cache(maxsize=_KEYS_REMEMBERED)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class _Message(_Frozen):
    context: MessageContext

    @property
    def notes(self) -> MessageNotes:
        """The gateway's notes with it."""
        return self.context.notes

    def with_context(self, context: MessageContext) -> Self:
        """Return it with another context."""
        return self.model_copy(update={"context": context})

    def with_notes(self, notes: MessageNotes) -> Self:
        """Return it with other notes of the gateway."""
        return self.with_context(replace(self.context, notes=notes))


class InboundMessage(_Message):
    """
    One message as a channel received it.

    ``(channel, account, native_id)`` is its identity: a second message with the same one is the same
    message.
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
    context: MessageContext = Field(default_factory=MessageContext)
    background: tuple[Background, ...] = ()
    """What the model is shown besides the text, marked as said by others; bounded by the channel."""


class Amendment(_Frozen):
    """
    A change of an earlier message, such as an edit; it is not a message and leaves no row.

    ``replace``: the sender has edited the message ``native_id``, which now says ``text``, and with
    ``names_bot`` that it is meant for the bot (`MessageContext.not_named`). ``withdraw``: the
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


class OutboundMessage(_Message):
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
    context: MessageContext = Field(default_factory=MessageContext)
    """The `InboundMessage.context` of the message that is answered; empty if there is none."""
    rings_for: tuple[str, ...] | None = None
    """
    The addresses of those whom it notifies, even as a notice, or `EVERYBODY` alone; None: nobody by name.
    """
    remembered: bool = False
    """Once its server has it, it becomes a line of the history of the conversation in which it arrived."""
    maybe_sent: bool = Field(default=False, exclude=True)
    """An earlier try may have arrived. Said for each try by whoever delivers, and never stored."""
