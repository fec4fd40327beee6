"""
A stand-in for a provider of pictures: ``/v1/images/generations`` as OpenAI has it.

A picture is a real PNG, small, of a colour that follows from the prompt.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

from devservers.provider import ProviderServer

if TYPE_CHECKING:
    from collections.abc import Mapping


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(text: str, *, width: int = 8, height: int = 8) -> bytes:
    """A picture of one colour, the same for the same text."""
    colour = hashlib.sha256(text.encode("utf-8", "replace")).digest()[:3]
    rows = (b"\0" + colour * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


class ImageServer(ProviderServer):
    """The server. ``paid`` has the prompts whose pictures were sent whole."""

    def __init__(self, *, wait_s: float = 0.0) -> None:
        super().__init__("/images/generations", wait_s=wait_s)
        self.paid: list[str] = []

    def right_answer(self, body: Mapping[str, Any]) -> tuple[bytes, str]:
        """As many pictures as are wished for."""
        count = int(body.get("n") or 1)
        made = [png_of(f"{body['prompt']} {number}") for number in range(count)]
        answer = {
            "created": 1,
            "data": [{"b64_json": base64.b64encode(each).decode()} for each in made],
            "usage": {"input_tokens": 12, "output_tokens": 100 * count, "total_tokens": 12 + 100 * count},
        }
        return json.dumps(answer).encode(), "application/json"

    def was_given(self, body: Mapping[str, Any]) -> None:
        """See `ProviderServer.was_given`."""
        self.paid.append(body["prompt"])
