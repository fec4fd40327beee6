"""
Decides which conversation a message belongs to, and how an answer finds its way back into it. Pure. A room
has one session while two are alone, and another once more can read (`SHARED`), so that private words stay
private. Threads have sessions under their root, unless the setting is ``off``. With ``always`` a question in
a group opens a thread; in a room of two that would only hide answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from agent_core.messages import SessionKey
from channels.matrix.client.json_access import JsonObject, object_of, text_of

SHARED = "shared"
"""In the place of a thread: the session of a room while several people read along."""
EVENT_ID = re.compile(r"\$[!-~]{1,254}")

ThreadMode = Literal["off", "follow", "always"]


def is_shared(thread: str | None) -> bool:
    """Return true for the thread of a session in which several people read along."""
    return (thread or "").startswith(SHARED)


@dataclass(frozen=True, slots=True)
class ThreadPosition:
    """The place of a message: its session, and the root of the thread for its answer, if any."""

    session: SessionKey
    thread: str | None = None


def root_of(content: JsonObject) -> str | None:
    """The root of a message's thread."""
    relation = object_of(content, "m.relates_to")
    root = text_of(relation, "event_id")
    if relation.get("rel_type") != "m.thread" or not EVENT_ID.fullmatch(root):
        return None
    # No real id holds one, and elsewhere a thread with one is a person's.
    return None if "@" in root else root


def place_of(
    *, channel: str, room_id: str, event_id: str, root: str | None, direct: bool, mode: ThreadMode
) -> ThreadPosition:
    """The place of the message ``event_id``, which is in the thread of ``root`` or in none."""
    if root is None and mode == "always" and not direct:
        root = event_id
    if root is None or mode == "off":
        return ThreadPosition(
            SessionKey(channel, room_id) if direct else SessionKey(channel, room_id, SHARED), root
        )
    return ThreadPosition(SessionKey(channel, room_id, root if direct else f"{SHARED}{root}"), root)


def relation_of(event_id: str, thread: str | None, *, points_back: bool) -> dict[str, Any]:
    """
    The ``m.relates_to`` of an answer to ``event_id``; empty for a plain message.

    Inside of a thread the reply is only there for clients that know none (``is_falling_back``), unless the
    answer is to point back; and never to the root of its own thread, which is always in sight there.
    """
    if thread is None:
        return {"m.in_reply_to": {"event_id": event_id}} if points_back else {}
    return {
        "rel_type": "m.thread",
        "event_id": thread,
        "is_falling_back": not points_back or thread == event_id,
        "m.in_reply_to": {"event_id": event_id},
    }
