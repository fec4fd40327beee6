"""
From an `OutboundMessage` to the content of an event, and the keys that make sending it repeatable. Pure.

The transaction id is a hash of the message's id: the same message always has the same one, and a homeserver
makes one event of however many requests with it come from one device. For the case that the device itself
was lost in between, the id is also in the content (`MARK`), where `is_ours` finds it again.

``m.mentions`` is always there, empty if nobody is meant: without it a client searches the text for names.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from typing import Any, Literal

from agent_core.messages import OutboundKind, OutboundMessage
from channels.markup import to_html
from channels.matrix.rooms import JsonObject, object_of

__all__ = [
    "MARK",
    "MAX_CONTENT_BYTES",
    "MAX_SECRET_BYTES",
    "build_content",
    "is_ours",
    "size_of",
    "transaction_id",
]

MARK = "org.squidbot.message"
MAX_CONTENT_BYTES = 60_000
"""An event may have 65,536 bytes, of which signatures, hashes and ids need some."""
MAX_SECRET_BYTES = 45_000
"""The same before encryption, which makes four bytes of three."""

_EVENT_ID = re.compile(r"\$[!-~]{1,254}")
_USER_ID = re.compile(r"@[!-~]{0,253}:[!-~]{1,253}")


def transaction_id(message: OutboundMessage) -> str:
    """The key by which a homeserver recognises a repetition."""
    return "sq" + hashlib.sha256(message.id.encode()).hexdigest()[:32]


def is_ours(event: JsonObject, message: OutboundMessage, user_id: str) -> bool:
    """Whether an event of a room is this message, sent earlier by this account."""
    mark = object_of(event, "content").get(MARK)
    return event.get("sender") == user_id and mark == transaction_id(message)


def build_content(
    message: OutboundMessage,
    *,
    reply: Literal["groups", "always", "never"] = "groups",
    formatted: bool = True,
) -> dict[str, Any]:
    """
    Build the content of an ``m.room.message``.

    A formatted body is left out where it adds nothing, and where it would make the event too large.
    """
    content: dict[str, Any] = {
        "msgtype": "m.notice" if message.kind is OutboundKind.NOTICE else "m.text",
        "body": message.text,
        "m.mentions": {},
        MARK: transaction_id(message),
    }
    answers = message.kind in (OutboundKind.REPLY, OutboundKind.APOLOGY)
    if answers:
        _relate(content, message.context, reply=reply)
    if formatted:
        rendered = to_html(message.text)
        if rendered != f"<p>{html.escape(message.text, quote=False)}</p>":
            with_html = {**content, "format": "org.matrix.custom.html", "formatted_body": rendered}
            if size_of(with_html) <= MAX_CONTENT_BYTES:
                return with_html
    return content


def size_of(content: JsonObject) -> int:
    """How many bytes this is in an event (canonical JSON)."""
    encoded = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return len(encoded.encode("utf-8", "surrogatepass"))


def _relate(content: dict[str, Any], context: JsonObject, *, reply: str) -> None:
    """Point back to the question, in its thread if it was in one, and mention who asked in a group."""
    event_id, sender, thread = context.get("event_id"), context.get("sender"), context.get("thread")
    in_group = context.get("direct") is not True
    if not isinstance(event_id, str) or not _EVENT_ID.fullmatch(event_id):
        return
    points_back = reply == "always" or (reply == "groups" and in_group)
    relation: dict[str, Any] = {}
    if isinstance(thread, str) and _EVENT_ID.fullmatch(thread):
        # A reply inside of a thread; clients without threads show it as a plain reply.
        relation = {"rel_type": "m.thread", "event_id": thread, "is_falling_back": not points_back}
    if relation or points_back:
        content["m.relates_to"] = {**relation, "m.in_reply_to": {"event_id": event_id}}
    if in_group and isinstance(sender, str) and _USER_ID.fullmatch(sender):
        content["m.mentions"] = {"user_ids": [sender]}
