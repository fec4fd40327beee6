"""Checks the types of what a child process sends, which is trusted as little as a server's data. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_core.errors import Failure


def failure_in(frame: object) -> Failure:
    """The failure of a frame. Raises `ValueError`: it is none."""
    data = object_in(frame)
    status = data.get("status")
    headers = object_in(data.get("headers", {}))
    return Failure(
        status=status if isinstance(status, int) else None,
        text=text_in(data.get("text", "")),
        code=text_in(data.get("code", "")),
        headers={text_in(name): text_in(value) for name, value in headers.items()},
        transport=bool(data.get("transport")),
        unreadable=text_in(data.get("unreadable", "")),
    )


def text_of_piece(piece: object) -> str:
    """The text of a piece of an answer that is nothing but text. Raises `ValueError`: it has none."""
    return text_in(object_in(piece).get("text", ""))


def object_in(value: object) -> Mapping[str, Any]:
    """A JSON object, or ValueError."""
    if not isinstance(value, dict):
        raise ValueError("an object was expected")  # noqa: TRY004 - about content, not types
    return value


def list_in(value: object) -> list[Any]:
    """A JSON list, or ValueError."""
    if not isinstance(value, list):
        raise ValueError("a list was expected")  # noqa: TRY004 - likewise
    return value


def text_in(value: object) -> str:
    """A text, or ValueError."""
    if not isinstance(value, str):
        raise ValueError("a text was expected")  # noqa: TRY004 - likewise
    return value
