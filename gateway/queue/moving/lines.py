"""
A line of a file as a text that PostgreSQL can have, and back. Pure.

A line that is no UTF-8 or has a NUL in it, which only damage makes, is written in base64; it cannot be read
there either, and becomes the same bytes again.
"""

from __future__ import annotations

import base64
import binascii

from agent_core.storage.lines import as_object, encode_object

_BEFORE, _AFTER = '{"bytes_of_a_broken_line":"', '"}'


def as_text(raw: bytes) -> str:
    """The line as a text."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        value = as_object(raw)
        if value is not None:  # it can be read all the same: half a surrogate pair, written as it is
            return encode_object(value).rstrip(b"\n").decode()
    else:
        if "\0" not in text and not text.startswith(_BEFORE):
            return text
    return f"{_BEFORE}{base64.b64encode(raw).decode()}{_AFTER}"


def as_bytes(text: str) -> bytes:
    """What `as_text` was given."""
    if text.startswith(_BEFORE) and text.endswith(_AFTER):
        try:
            return base64.b64decode(text[len(_BEFORE) : -len(_AFTER)], validate=True)
        except binascii.Error:
            pass
    return text.encode()
