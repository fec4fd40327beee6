"""
Converts edits (``m.replace``) and redactions of people's messages into amendments. Pure. An edit never
becomes a question; the store decides what it makes of a waiting message of the same sender. An edit may
precede its message (late key, slow server), so a message is taken with the newest bundled edit or that of
`EarlyEdits`. A moderator's redaction counts as the sender's; homeservers check that right, except for
encrypted senders, by the target that the room's version names, and so do we.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from agent_core.bounded import Bounded
from agent_core.messages import BY_EDIT, Amendment, InboundMessage
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.events.inbound_events import Skip, message_text
from channels.matrix.events.matrix_threads import EVENT_ID

_MAX_EARLY = 200
_TARGET_ADJACENT = frozenset(str(number) for number in range(1, 11))
_USER_ID = re.compile(r"@[!-~]{0,253}:[!-~]{1,253}")


def edits(event: JsonObject) -> str:
    """The id of the event that this one edits; empty if it is not an edit."""
    relation = object_of(object_of(event, "content"), "m.relates_to")
    target = text_of(relation, "event_id")
    return target if relation.get("rel_type") == "m.replace" and EVENT_ID.fullmatch(target) else ""


def edited_text(event: JsonObject) -> str | None:
    """The new text in an edit, None if it is not text for us."""
    content = object_of(event, "content").get("m.new_content")
    if not isinstance(content, Mapping):
        return None
    text = message_text(content)
    return None if isinstance(text, Skip) else text


def read_edit(event: JsonObject) -> Amendment | Skip:
    """An edit as an amendment."""
    target, sender, text = edits(event), text_of(event, "sender"), edited_text(event)
    if not target or text is None or not _USER_ID.fullmatch(sender):
        return Skip("edit")
    return Amendment(kind="replace", native_id=target, sender=sender, text=text)


def mark_as_edit(message: InboundMessage) -> InboundMessage:
    """A message that is a question since this edit of it."""
    return message.model_copy(update={"native_id": f"{message.native_id}{BY_EDIT}"})


def edit_in(message: InboundMessage) -> list[Amendment]:
    """The same edit as an amendment, in case that an earlier one has made it a question; else nothing."""
    edited = message.native_id.removesuffix(BY_EDIT)
    if edited == message.native_id:
        return []
    text, sender = message.text, message.sender.address
    return [Amendment(kind="replace", native_id=edited, sender=sender, text=text, names_bot=True)]


def bundled_edit(event: JsonObject) -> JsonObject | None:
    """The newest edit of an event that the server has attached to it; it may still be encrypted."""
    relations = object_of(object_of(event, "unsigned"), "m.relations")
    edit = object_of(relations, "m.replace")
    same = text_of(edit, "sender") == text_of(event, "sender")
    return edit if same and object_of(edit, "content") else None


def redacts(event: JsonObject, version: str) -> str:
    """
    The id of the event that a redaction removes.

    It stands in the content since room version 11, beside it in earlier ones. Where the version is not known
    (empty), a redaction that names two events names none.
    """
    inside, beside = text_of(object_of(event, "content"), "redacts"), text_of(event, "redacts")
    if version in _TARGET_ADJACENT:
        target = beside
    elif version:
        target = inside
    else:
        target = "" if inside and beside and inside != beside else inside or beside
    return target if EVENT_ID.fullmatch(target) else ""


class EarlyEdits:
    """
    Edits of messages not yet received, at most `_MAX_EARLY`.

    Beyond, the person with most of them loses the oldest, the owner last.
    """

    def __init__(self, is_owner: Callable[[str], bool] = lambda _user: False) -> None:
        self._is_owner = is_owner
        self._texts: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def keep(self, room_id: str, edit: Amendment) -> None:
        """Remember an edit."""
        key = (room_id, edit.native_id, edit.sender)
        self._texts.pop(key, None)
        self._texts[key] = edit.text
        if len(self._texts) > _MAX_EARLY:
            of = Counter(sender for _, _, sender in self._texts)
            most = max(of, key=lambda person: (not self._is_owner(person), of[person]))
            del self._texts[next(one for one in self._texts if one[2] == most)]

    def take(self, room_id: str, event_id: str, sender: str) -> str | None:
        """The latest text of the message, if its sender has edited it."""
        return self._texts.pop((room_id, event_id, sender), None)


class Senders:
    """The senders of recent events."""

    def __init__(self) -> None:
        self._by_event: Bounded[tuple[str, str], str] = Bounded(2000)

    def note(self, room_id: str, event_id: Any, sender: Any) -> None:
        """Record an event's sender."""
        if isinstance(event_id, str) and isinstance(sender, str):
            self._by_event[room_id, event_id] = sender

    def sender_of(self, room_id: str, event_id: str) -> str:
        """The sender of an event; empty if it is not a recent one."""
        return self._by_event.get((room_id, event_id), "")
