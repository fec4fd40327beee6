"""The frames between daemon and child process: four bytes of length, then a JSON object. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

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
