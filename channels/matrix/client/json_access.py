"""
Looking into what strangers have written: every look gives something of the type that is asked for.

Anybody can send something that only just passes their homeserver and ours and cannot be read here, because it
is nested deeper than this Python can go, or holds a longer number. It must not make the whole answer
unreadable, which would come again and again: such values are cut out of it (`decoded`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["JsonObject", "decoded", "events_of", "object_of", "objects_of", "text_of"]

JsonObject = Mapping[str, Any]
_DEEPEST = 150
_LONGEST_NUMBER = 400
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")


def decoded(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of an answer, without values that nothing can read; empty if it is none."""
    try:
        found = json.loads(body)
    except json.JSONDecodeError:
        return {}
    except (ValueError, RecursionError):
        try:
            found = json.loads(_shallow(body), parse_int=_number)
        except (ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def _shallow(body: bytes) -> bytes:
    """The same JSON, with ``null`` for whatever is nested too deep."""
    pieces: list[bytes] = []
    depth, kept = 0, 0
    for token in _TOKEN.finditer(body):
        if token[0] in _OPENING:
            depth += 1
            if depth == _DEEPEST + 1:
                pieces += [body[kept : token.start()], b"null"]
        elif token[0] in _CLOSING:
            depth -= 1
            if depth == _DEEPEST:
                kept = token.end()
    return b"".join(pieces) + (body[kept:] if depth <= _DEEPEST else b"")


def _number(digits: str) -> int:
    return int(digits) if len(digits) <= _LONGEST_NUMBER else 0


def object_of(value: Any, key: str) -> JsonObject:
    """``value[key]`` if that is a JSON object, else an empty one."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def text_of(value: Any, key: str) -> str:
    """``value[key]`` if that is a text, else an empty one."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else ""


def events_of(value: Any, key: str) -> list[JsonObject]:
    """The JSON objects in ``value[key]["events"]``."""
    return objects_of(object_of(value, key), "events")


def objects_of(value: Any, key: str) -> list[JsonObject]:
    """The JSON objects in the list ``value[key]``."""
    found = value.get(key) if isinstance(value, Mapping) else None
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
