"""The interface of an image client, as the tool uses it, and the checks of its pictures."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ADDRESS = "an address instead of the picture; set extra: {response_format: b64_json}"
_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


@dataclass(frozen=True, slots=True)
class GeneratedPicture:
    """The pictures of one request (PNG, JPEG or WebP), with tokens and US dollars if known."""

    pictures: tuple[bytes, ...]
    tokens: tuple[int, int] = (0, 0)
    cost_usd: float | None = None
    model: str = ""


def picture_type(content: bytes) -> str:
    """The media type of a picture by its content; empty: it is not a picture that can be sent to people."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((name for begins, name in _TYPES.items() if content.startswith(begins)), "")


def pictures_in(answer: Mapping[str, Any], *, most: int, max_bytes: int) -> tuple[bytes, ...]:
    """Return up to ``most`` pictures of an ``/images/generations`` answer. Raises ValueError."""
    data = answer.get("data")
    found = []
    for each in data[:most] if isinstance(data, list) else ():
        text = each.get("b64_json") if isinstance(each, dict) else None
        if not isinstance(text, str) or not text:
            if isinstance(each, dict) and each.get("url"):
                raise ValueError(_ADDRESS)
            continue
        if len(text) > max_bytes * 4 // 3 + 4:
            raise ValueError(f"a picture of more than {max_bytes / 1e6:g} MB")
        try:
            content = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise ValueError("a picture that is not base64") from None
        if not picture_type(content):
            raise ValueError("something that is neither PNG, JPEG nor WebP")
        found.append(content)
    if not found:
        raise ValueError("an answer without a picture")
    return tuple(found)
