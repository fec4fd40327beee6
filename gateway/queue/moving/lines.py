"""
Converts a line of a file to a text that PostgreSQL can store, and back. Pure.

Only damage produces a line that is not UTF-8 or contains a NUL. Such a line is stored in base64. It is
unreadable in the database, too, and converts back to the same bytes.
"""

from __future__ import annotations

import base64
import binascii

from agent_core.storage.lines import as_object, encode_object

_BEFORE, _AFTER = '{"bytes_of_a_broken_line":"', '"}'


def as_text(raw: bytes) -> str:
    """Return the line as text."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        value = as_object(raw)
        if value is not None:  # readable nevertheless: half a surrogate pair in raw form
            return encode_object(value).rstrip(b"\n").decode()
    else:
        if "\0" not in text and not text.startswith(_BEFORE):
            return text
    return f"{_BEFORE}{base64.b64encode(raw).decode()}{_AFTER}"


def as_bytes(text: str) -> bytes:
    """Return the bytes that `as_text` was given."""
    if text.startswith(_BEFORE) and text.endswith(_AFTER):
        try:
            return base64.b64decode(text[len(_BEFORE) : -len(_AFTER)], validate=True)
        except binascii.Error:
            pass
    return text.encode()
