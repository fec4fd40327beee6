"""Looking into what strangers have written: every look gives something of the type that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["JsonObject", "events_of", "object_of", "objects_of", "text_of"]

JsonObject = Mapping[str, Any]


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
