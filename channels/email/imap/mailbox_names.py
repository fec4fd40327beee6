"""Modified UTF-7 (RFC 3501, section 5.1.3), in which IMAP encodes folder names that are not ASCII. Pure."""

from __future__ import annotations

import base64
import binascii
import re

_PLAIN = re.compile(r"[ -~]+|[^ -~]+")
_ENCODED = re.compile(r"&([A-Za-z0-9+,]*)-")


def folder_wire(name: str) -> str:
    """``Entwürfe`` as ``Entw&APw-rfe``: the form for a server."""
    return "".join(
        piece.replace("&", "&-") if piece[0].isascii() and piece.isprintable() else _encoded(piece)
        for piece in _PLAIN.findall(name)
    )


def _encoded(text: str) -> str:
    raw = text.encode("utf-16-be", "surrogatepass")
    return f"&{base64.b64encode(raw).rstrip(b'=').replace(b'/', b',').decode()}-"


def folder_name(wire: str) -> str:
    """``Entw&APw-rfe`` as ``Entwürfe``: the form for people; other texts stay as they are."""
    return _ENCODED.sub(_decoded, wire)


def _decoded(match: re.Match[str]) -> str:
    if not match.group(1):
        return "&"
    text = match.group(1).replace(",", "/")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        return raw.decode("utf-16-be")
    except (binascii.Error, ValueError):
        return match.group(0)
