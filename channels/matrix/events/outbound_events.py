"""
Converts an `OutboundMessage` into the content of an event, with the keys that make sending repeatable. Pure.
The transaction id is a hash of the message's id, so that a homeserver makes one event of repetitions from a
device; for a lost device it is also in the content (`MARK`). A preview's id derives from the question.
``m.mentions`` is always set (else clients search names): the asker and those the gateway names, and members'
ids in the text outside of code, quotes and links, none above `MAX_NAMED` and none in answers to commands.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote

from agent_core.messages import EVERYBODY, MessageContext, OutboundKind, OutboundMessage, SessionKey
from channels.markup import remove_control_characters, to_html
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.events.inbound_events import AUTHOR, MARK, MatrixRoute
from channels.matrix.events.matrix_threads import EVENT_ID, relation_of

MAX_CONTENT_BYTES = 60_000
"""An event may have 65,536 bytes, of which signatures, hashes and ids need some."""
MAX_SECRET_BYTES = 45_000
"""The same before encryption, which makes four bytes of three."""

MAX_NAMED = 5
"""A text that names more people is a list, and calls nobody."""
_PIECE = re.compile(r"<(/?)(\w++)[^<>]*+>|[^<]+")
_VERBATIM = frozenset({"a", "blockquote", "code", "pre"})
_USER_ID = re.compile(r"@[!-~]{0,253}:[!-~]{1,253}")


def transaction_id(outbound_id: str) -> str:
    """The key by which a homeserver recognises a repetition of the message with this id."""
    return "sq" + hashlib.sha256(outbound_id.encode()).hexdigest()[:32]


def transaction_of_event(event: JsonObject) -> str:
    """The transaction id under which a squidbot sent an event; empty if somebody else sent it."""
    return text_of(object_of(event, "content"), MARK)


def is_first_part(message: OutboundMessage) -> bool:
    """Return True for an answer to a question, or the first of its parts."""
    answers = message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY)
    return answers and not message.context.part and bool(message.context.read_route(MatrixRoute).event_id)


def preview_of(message: OutboundMessage) -> OutboundMessage:
    """The unfinished form of an answer; its id depends on the question alone."""
    asked = f"preview\0{message.account}\0{message.context.read_route(MatrixRoute).event_id}"
    return message.model_copy(update={"id": asked})


def in_room(message: OutboundMessage, room_id: str) -> OutboundMessage:
    """The message for the room in which its session continues, without references to other rooms."""
    context, route = message.context, message.context.read_route(MatrixRoute)
    if room_id != (route.room or message.session.conversation):
        kept = MatrixRoute(sender=route.sender, direct=route.direct)
        context = MessageContext(person=context.person, speech=context.speech).with_route(kept)
    session = SessionKey(message.session.channel, room_id, message.session.thread)
    return message.model_copy(update={"session": session, "context": context})


def notice(
    session: SessionKey, account: str, text: str, *, name: str, now: datetime, rings_for: tuple[str, ...]
) -> OutboundMessage:
    """A text of the channel itself for people in a room; under the same name it is sent once."""
    return OutboundMessage(
        id=name,
        channel=session.channel,
        account=account,
        session=session,
        kind=OutboundKind.NOTICE,
        text=text,
        created_at=now,
        rings_for=rings_for,
    )


def build_content(
    message: OutboundMessage,
    name: str = "",
    *,
    reply: Literal["groups", "always", "never"] = "groups",
    formatted: bool = True,
    first: bool = True,
    members: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """
    Build the content of an ``m.room.message``.

    Args:
        name: The transaction id; default: that of the message.
        reply: The setting for replies to the question.
        formatted: Add formatted text where it differs.
        first: The first part of an answer: it replies and mentions the asker.
        members: The room's people and their names.
    """
    text = remove_control_characters(message.text)
    answers = message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY)
    begins = first and not message.context.part
    # The default push rules ring for each text in a room of two, never for a notice: an answer rings once.
    quiet = not begins if answers else message.kind is OutboundKind.NOTICE and not _rings(message)
    content: dict[str, Any] = {
        "msgtype": "m.notice" if quiet else "m.text",
        "body": text,
        "m.mentions": {},
        MARK: name or transaction_id(message.id),
        AUTHOR: message.account,
    }
    if answers or _rings(message):
        _relate(content, message.context.read_route(MatrixRoute), reply=reply, first=begins)
    meant = [each for each in message.rings_for or () if each == EVERYBODY or _USER_ID.fullmatch(each)]
    if meant and begins:
        content["m.mentions"] = {"room": True} if EVERYBODY in meant else {"user_ids": meant}
    if formatted:
        names = {each: name for each, name in members.items() if each != message.account and each in text}
        rendered, named = with_pills(to_html(text), dict.fromkeys(meant, "") | names)
        if 0 < len(named) <= MAX_NAMED and not meant and not message.notes.is_command:
            called = content["m.mentions"].get("user_ids", [])
            content["m.mentions"] = {"user_ids": list(dict.fromkeys([*called, *named]))}
        if rendered != f"<p>{html.escape(text, quote=False)}</p>":
            return {**content, "format": "org.matrix.custom.html", "formatted_body": rendered}
    return content


def with_pills(rendered: str, names: Mapping[str, str]) -> tuple[str, list[str]]:
    """Make pills of the ids among ``names`` that stand in a text of safe HTML; also returns these ids."""
    if not names:
        return rendered, []
    ids = "|".join(re.escape(html.escape(each)) for each in sorted(names, key=len, reverse=True))
    standing = re.compile(rf"(?<![\w.@/\-])(?:{ids})(?![\w\-]|[.:]\w)")
    named: dict[str, None] = {}

    def pill(found: re.Match[str]) -> str:
        who = html.unescape(found[0])
        named[who] = None
        name = html.escape(names[who] or who, quote=False)
        return f'<a href="https://matrix.to/#/{quote(who, safe="@:")}">{name}</a>'

    depth, pieces = 0, []
    for piece in _PIECE.finditer(rendered):
        if piece[2] is not None:
            depth += (-1 if piece[1] else 1) if piece[2] in _VERBATIM else 0
        pieces.append(piece[0] if depth or piece[2] is not None else standing.sub(pill, piece[0]))
    return "".join(pieces), list(named)


def _rings(message: OutboundMessage) -> bool:
    """Return True if clients shall notify people; by default they ignore an ``m.notice``."""
    return message.rings_for is not None


def frame_of(message: OutboundMessage, name: str) -> dict[str, Any]:
    """Build the content that a further event of a message shares with its text: name and thread."""
    frame: dict[str, Any] = {"m.mentions": {}, MARK: name, AUTHOR: message.account}
    if message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY):
        _relate(frame, message.context.read_route(MatrixRoute), reply="never", first=False)
    return frame


def as_edit(
    content: JsonObject, event_id: str, *, max_bytes: int, called: Sequence[str] = ()
) -> dict[str, Any]:
    """
    The same content as an edit of an earlier event of ours.

    What clients show is ``m.new_content``, which is complete. The rest is for clients that know no edits: it
    is cut where both do not fit. ``called`` are mentioned anew.
    """
    new = {key: value for key, value in content.items() if key not in ("m.relates_to", MARK, AUTHOR)}
    edit: dict[str, Any] = {
        "msgtype": content["msgtype"],
        "body": f"* {content['body']}",
        "m.mentions": {"user_ids": list(called)} if called else {},
        "m.new_content": new,
        "m.relates_to": {"rel_type": "m.replace", "event_id": event_id},
        MARK: content[MARK],
        AUTHOR: content[AUTHOR],
    }
    if "formatted_body" in content:
        html_too = {**edit, "format": content["format"], "formatted_body": f"* {content['formatted_body']}"}
        if size_of(html_too) <= max_bytes:
            return html_too
    if size_of(edit) > max_bytes:
        edit["body"] = f"* {content['body'][:500]} […]"
    return edit


def size_of(content: JsonObject) -> int:
    """Return the bytes of this content in an event (canonical JSON)."""
    encoded = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return len(encoded.encode("utf-8", "surrogatepass"))


def _relate(content: dict[str, Any], route: MatrixRoute, *, reply: str, first: bool) -> None:
    """Point back to the question, in its thread if it was in one, and mention who asked in a group."""
    if not EVENT_ID.fullmatch(route.event_id):
        return
    points_back = first and (reply == "always" or (reply == "groups" and not route.direct))
    root = route.thread if route.thread and EVENT_ID.fullmatch(route.thread) else None
    relation = relation_of(route.event_id, root, points_back=points_back)
    if relation:
        content["m.relates_to"] = relation
    if first and not route.direct and _USER_ID.fullmatch(route.sender):
        content["m.mentions"] = {"user_ids": [route.sender]}
