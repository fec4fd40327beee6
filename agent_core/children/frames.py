"""
The frames between daemon and child process: four bytes of length, then a JSON object, whose types are checked
because a child is trusted as little as a server. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent_core.errors import Failure

MAX_FRAME_BYTES = 48 * 1024 * 1024
"""A request with as many pictures as are sent at once, and a long conversation."""
_HEAD = 4


def encode_frame(frame: Mapping[str, Any], *, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Encode an object. Raises `ValueError`: it is too large, or not JSON."""
    body = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    if len(body) > max_bytes:
        raise ValueError(f"a frame of {len(body)} bytes")
    return len(body).to_bytes(_HEAD) + body


class FrameDecoder:
    """Splits bytes into complete objects. Buffers at most ``max_bytes`` of one."""

    def __init__(self, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self.size = 0
        """Of the object that was given last."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Take bytes and yield the objects they complete. Raises ValueError for a large or invalid one."""
        self._data += data
        while len(self._data) >= _HEAD:
            size = int.from_bytes(self._data[:_HEAD])
            if size > self._max_bytes:
                raise ValueError(f"a frame of {size} bytes")
            if len(self._data) < _HEAD + size:
                return
            body = bytes(self._data[_HEAD : _HEAD + size])
            del self._data[: _HEAD + size]
            try:
                frame = json.loads(body)
            except RecursionError as error:
                raise ValueError("a frame that is nested too deeply") from error
            if not isinstance(frame, dict):
                raise ValueError("a frame that is not an object")  # noqa: TRY004 - about content, not types
            self.size = size
            yield frame


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


def piece_text(piece: object) -> str:
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
