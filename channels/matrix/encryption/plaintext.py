"""
From what was inside of an encrypted event to the event as it was before it was encrypted. Pure.

A homeserver checks who may redact an event and who may set the state of a room. It cannot look into what is
encrypted, so of that only what anybody may say counts: messages, stickers, reactions and verifications.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from channels.matrix.encryption.types import NotMeant, NotReadable

__all__ = ["uncovered"]

_MAX_PLAINTEXT = 200_000
_MEANT = frozenset({"m.room.message", "m.sticker", "m.reaction"})
_MAX_TYPE = 100


def uncovered(
    room_id: str, event: Mapping[str, Any], content: Mapping[str, Any], plaintext: str
) -> dict[str, Any]:
    """
    Put an event together.

    Args:
        room_id: Where it was seen.
        event: As the server sent it.
        content: Its content, which has the relations.
        plaintext: What was encrypted in it.

    Raises:
        NotMeant: Its type means nothing when it is encrypted.
        NotReadable: It was made for another room, or is no event.
    """
    try:
        inner = json.loads(plaintext) if len(plaintext) <= _MAX_PLAINTEXT else None
    except (ValueError, RecursionError) as error:
        raise NotReadable("malformed") from error
    if not isinstance(inner, dict) or inner.get("room_id") != room_id:
        raise NotReadable("room_mismatched")
    found = inner.get("content")
    if not isinstance(inner.get("type"), str) or not isinstance(found, dict):
        raise NotReadable("malformed")
    if inner["type"] not in _MEANT and not inner["type"].startswith("m.key.verification."):
        raise NotMeant(inner["type"][:_MAX_TYPE])
    if "m.relates_to" in content and "m.relates_to" not in found:
        found["m.relates_to"] = content["m.relates_to"]
    return {**event, "type": inner["type"], "content": found}
