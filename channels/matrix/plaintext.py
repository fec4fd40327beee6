"""From what was inside of an encrypted event to the event as it was before it was encrypted. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from channels.matrix.keys import NotReadable

__all__ = ["uncovered"]

_MAX_PLAINTEXT = 200_000


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
    if "m.relates_to" in content and "m.relates_to" not in found:
        found["m.relates_to"] = content["m.relates_to"]
    return {**event, "type": inner["type"], "content": found}
