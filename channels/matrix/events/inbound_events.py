"""
Converts a Matrix event into an `InboundMessage`, or says why it is skipped. Pure. Events are untrusted:
misshapen ones are ``malformed``; the bot's own, notices and unknown ones are skipped too. In a room of two
the bot is meant; elsewhere ``m.mentions`` (MSC3952) decides, then a pill or the bot's name as a word. Voice
messages follow MSC3245 and MSC1767 in their unstable names.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal
from urllib.parse import unquote

from agent_core.language import _, gettext_noop, speaking
from agent_core.messages import Audience, InboundMessage, MessageContext, OutboundMessage, Sender
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.events.formatted import formatted_text
from channels.matrix.events.matrix_threads import EVENT_ID, ThreadMode, place_of, root_of
from channels.matrix.events.media_events import FileNote, caption_of, media_kind, name_of, remark_about
from channels.matrix.events.polls import STARTS, poll_in
from channels.matrix.rooms.room_state import Rooms

MARK = "org.squidbot.message"
"""In the content of whatever a squidbot sends: its name."""
AUTHOR = "org.squidbot.author"
"""Beside it, which account that squidbot has: a person may pass on what a squidbot has said."""

_LIVE_LOCATIONS = ("m.beacon_info", "org.matrix.msc3672.beacon_info")
_USER_ID = re.compile(r"@[!-~]{0,253}:[!-~]{1,253}")
_HREF = re.compile(r"""href\s*=\s*["']([^"']{1,1000})["']""", re.IGNORECASE)
_ABOUT_FILES = frozenset(
    {"msgtype", "body", "filename", "url", "file", "info", "org.matrix.msc3245.voice", "m.voice"}
)
_MAX_TEXT = 100_000
_NOT_WORDS = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\b\w++://\S+|(?<![\w.+\-])[.+\-]*+\w[\w.+\-]*+@\S+", re.DOTALL
)
"""Code and addresses."""


@dataclass(frozen=True, kw_only=True)
class MatrixRoute:
    """The note in the context of a message, which comes back with the answer: its event, who asked, where."""

    event_id: str = ""
    sender: str = ""
    direct: bool = False
    room: str = ""  # the room in which it was said, if its session began in an earlier one
    thread: str | None = None
    media: FileNote | None = None  # the file that is still to be fetched


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """The bot in this conversation: its id, its names, and when a message addresses it."""

    channel: str
    user_id: str
    display_name: str = ""
    group_policy: Literal["mention", "open", "allowlist"] = "mention"
    group_allow_from: tuple[str, ...] = ()
    mention_by_name: bool = True
    threads: ThreadMode = "off"
    silent: bool = False
    """Not even in a room of two, unless it is a direct one."""
    name_here: str = ""
    """As the room knows it now; ``display_name`` is from the start of the daemon."""
    language: str = ""
    """Of what a sender is told there; empty: that of the home."""

    @property
    def names(self) -> tuple[str, ...]:
        """The display names by which people call it here."""
        return tuple(dict.fromkeys(filter(None, (self.name_here, self.display_name))))


@dataclass(frozen=True, slots=True)
class Skip:
    """The event is not a message for us; ``reason`` is a short constant."""

    reason: str


def read_event(  # noqa: PLR0911 - a chain of reasons to say no
    event: Any, room_id: str, *, me: BotIdentity, rooms: Rooms, now: datetime
) -> InboundMessage | Skip:
    """Read one untrusted event of a timeline, fetched at ``now``; ``rooms`` include this answer."""
    if not isinstance(event, Mapping):
        return Skip("malformed")
    kind, content = event.get("type"), object_of(event, "content")
    if kind == "m.room.encrypted":
        return Skip("encrypted")
    is_live = kind in _LIVE_LOCATIONS and content.get("live") is True
    if not is_live and (kind not in ("m.room.message", "m.sticker", *STARTS) or "state_key" in event):
        return Skip("no_message")
    event_id, sender = event.get("event_id"), event.get("sender")
    if not isinstance(event_id, str) or not EVENT_ID.fullmatch(event_id):
        return Skip("malformed")
    if not isinstance(sender, str) or not _USER_ID.fullmatch(sender) or len(sender) > 255:
        return Skip("malformed")
    if sender == me.user_id:
        return Skip("own")
    if not content or "redacted_because" in object_of(event, "unsigned"):
        return Skip("redacted")
    if content.get(AUTHOR) == sender:
        return Skip("robot")
    direct = rooms.is_direct(room_id, sender)
    alone = direct or (rooms.is_alone_with(room_id, sender) and not me.silent)
    what = _unreadable_in(kind, content) if alone else ""
    text = f"[{what}]" if what else _text(kind, content)
    if isinstance(text, Skip):
        return text
    me = replace(me, name_here=rooms.name_in(room_id, me.user_id))
    place = place_of(
        channel=me.channel,
        room_id=room_id,
        event_id=event_id,
        root=root_of(content),
        direct=direct,
        mode=me.threads,
    )
    context = MessageContext(
        in_reply_to=replies_to(content),
        unreadable=_not_read(what, me.language) if what else "",
        # How it is called here: its name in front of a command is passed over.
        names=() if direct else me.names,
        not_named=not alone and _is_not_named(content, me),
    )
    route = MatrixRoute(
        event_id=event_id, sender=sender, direct=direct, thread=place.thread, media=file_in(kind, content)
    )
    return InboundMessage(
        channel=me.channel,
        account=me.user_id,
        native_id=event_id,
        session=place.session,
        sender=Sender(address=sender, name=_clean(rooms.name_in(room_id, sender)), verified=True),
        text=text,
        received_at=received_at(event, now),
        audience=Audience.DIRECT if direct else Audience.GROUP,
        addressed=alone or _addressed(content, room_id, me),
        context=context.with_route(route),
    )


def mentions(content: JsonObject, me: BotIdentity) -> bool:
    """Return True if a message's content mentions the bot."""
    if isinstance(content.get("m.mentions"), Mapping):
        user_ids = object_of(content, "m.mentions").get("user_ids")
        return isinstance(user_ids, list) and me.user_id in user_ids
    if _has_pill(text_of(content, "formatted_body"), me.user_id):
        return True
    # The name of a file is chosen by a camera, not by somebody who wants something of the bot.
    body = caption_of(content) if media_kind("m.room.message", content) else _without_quote(content)
    body = _NOT_WORDS.sub(" ", body[:_MAX_TEXT])
    if _stands_alone(me.user_id, body):
        return True
    names = (*me.names, me.user_id[1:].partition(":")[0]) if me.mention_by_name else ()
    return any(len(name) > 1 and _stands_alone(name, body) for name in names)


def replies_to(content: JsonObject) -> str:
    """The id of the event that a message answers; empty if none, or if it is only a thread's fallback."""
    relation = object_of(content, "m.relates_to")
    if relation.get("rel_type") == "m.thread" and relation.get("is_falling_back") is True:
        return ""
    answered = text_of(object_of(relation, "m.in_reply_to"), "event_id")
    return answered if EVENT_ID.fullmatch(answered) else ""


def _not_read(what: str, language: str) -> str:
    with speaking(language):
        return _("I cannot read {what}. Please say it in words.", what=_(what))


def _unreadable_in(kind: Any, content: JsonObject) -> str:
    """Name the kind of a message the bot cannot read; "" if it can, or if it is for programs."""
    msgtype = content.get("msgtype")
    if kind in _LIVE_LOCATIONS:
        return gettext_noop("a live location")
    if kind in STARTS:
        return "" if poll_in(content) else gettext_noop("a poll")
    if kind != "m.room.message" or message_text(content) != Skip("unsupported") or _is_edit(content):
        return ""
    return "" if str(msgtype).startswith("m.key.") else gettext_noop("a message of this kind")


def _is_edit(content: JsonObject) -> bool:
    return object_of(content, "m.relates_to").get("rel_type") == "m.replace" or "m.new_content" in content


def _text(kind: Any, content: JsonObject) -> str | Skip:
    if kind == "m.sticker":
        return _about_file("sticker", content)
    if kind in _LIVE_LOCATIONS or (kind in STARTS and poll_in(content) is None):
        return Skip("unsupported")
    if _is_edit(content):
        return Skip("edit")
    return message_text(content)


def message_text(content: JsonObject) -> str | Skip:
    """The text in the content of a message or of its edit."""
    if poll := poll_in(content):
        return _clean(poll.text)
    body = content.get("body")
    kind = content.get("msgtype")
    if not isinstance(kind, str) or not isinstance(body, str):
        return Skip("malformed")
    if what := media_kind("m.room.message", content):
        return _about_file(what, content)
    if kind == "m.location":
        return _clean(f"[A location] {body} {text_of(content, 'geo_uri')}").strip()
    if kind == "m.notice" or kind.startswith("m.key."):
        return Skip("notice" if kind == "m.notice" else "unsupported")
    # Of any other kind the specification says that the body is read.
    plain = _without_quote(content)
    text = _clean(formatted_text(content, plain) or plain).strip()
    said = f"/me {text}" if kind == "m.emote" else text
    return said if text else Skip("empty" if kind in ("m.text", "m.emote") else "unsupported")


def _about_file(kind: str, content: JsonObject) -> str:
    """The caption and a remark, in whose place the file itself comes where it is fetched (``downloads``)."""
    caption = _clean(caption_of(content)).strip()
    remark = remark_about(kind, _clean(name_of(content)))
    return f"{caption}\n\n{remark}" if caption else remark


def file_in(kind: Any, content: JsonObject) -> FileNote | None:
    """Return what is needed to fetch a message's file later; None if it has none."""
    what = media_kind(kind, content)
    if not what:
        return None
    noted = {key: content[key] for key in content.keys() & _ABOUT_FILES}
    return FileNote(type=kind, content=noted, remark=remark_about(what, _clean(name_of(content))))


def _addressed(content: JsonObject, room_id: str, me: BotIdentity) -> bool:
    match me.group_policy:
        case "open":
            return True
        case "allowlist":
            return room_id in me.group_allow_from
        case "mention":
            return mentions(content, me)


def _is_not_named(content: JsonObject, me: BotIdentity) -> bool:
    """Say if a message goes to the bot for the room's policy alone; one that answers somebody may mean it."""
    return me.group_policy != "mention" and not replies_to(content) and not mentions(content, me)


def received_at(event: Mapping[str, Any], now: datetime) -> datetime:
    """
    Return when the server received an event, which may be long before it was fetched.

    Other people's servers set this time: it is never later than ``now``, and ``now`` if it is no valid time.
    """
    sent_at_ms = event.get("origin_server_ts")
    if not isinstance(sent_at_ms, int) or not 0 < sent_at_ms < 10**14:
        return now
    return min(datetime.fromtimestamp(sent_at_ms / 1000, now.tzinfo), now)


def _without_quote(content: JsonObject) -> str:
    """The body without the quotation that older clients put in front of a reply."""
    body = text_of(content, "body")
    if not replies_to(content) or not body.startswith("> "):
        return body
    lines = body.split("\n")
    first = next((number for number, line in enumerate(lines) if not line.startswith(">")), len(lines))
    rest = "\n".join(lines[first:]).strip("\n")
    return rest or body


def _has_pill(formatted: str, user_id: str) -> bool:
    if len(formatted) > _MAX_TEXT or "href" not in formatted.lower():
        return False
    # The pill of the author inside a quotation mentions nobody.
    formatted = formatted.rpartition("</mx-reply>")[2]
    wanted = {f"https://matrix.to/#/{user_id}", f"matrix:u/{user_id[1:]}"}
    return any(unquote(html.unescape(href)).partition("?")[0] in wanted for href in _HREF.findall(formatted))


def _stands_alone(name: str, text: str) -> bool:
    alone = rf"(?<![\w.\-/]){re.escape(name)}(?![\w\-/]|\.\w|:\w)"
    return re.search(alone, text[:_MAX_TEXT], re.IGNORECASE) is not None


def _clean(text: str) -> str:
    """Without half characters and NUL, which no encoder downstream accepts."""
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")


_LOUDEST = 1024


def is_voice_message(message: OutboundMessage) -> bool:
    """Return True if a message is one sound whose text was sent before it."""
    return message.context.speech is not None and bool(message.attachments) and not message.text


def as_voice_message(content: JsonObject, message: OutboundMessage) -> dict[str, Any]:
    """The content of an event with a sound, as that of a voice message; of any other file as it is."""
    speech = message.context.speech
    if content.get("msgtype") != "m.audio" or speech is None or speech.duration_ms is None:
        return dict(content)
    duration = speech.duration_ms
    levels = [min(max(level, 0), _LOUDEST) for level in speech.waveform[:256]]
    info = dict(object_of(content, "info"))
    where = content.get("file") or {"url": content.get("url")}
    return {
        **content,
        "info": {**info, "duration": duration},
        "org.matrix.msc1767.text": content["body"],
        "org.matrix.msc1767.file": {**where, "name": content["body"], **info},
        "org.matrix.msc1767.audio": {"duration": duration, "waveform": levels},
        "org.matrix.msc3245.voice": {},
    }
