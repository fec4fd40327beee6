"""Determines the type of a file: from its content if possible, else from what the sender claims. Pure."""

from __future__ import annotations

import mimetypes
import re
from functools import cache

from channels.attachments.attachment_pictures import Picture
from channels.attachments.file_names import safe_extension, safe_name

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}")
_UNKNOWN_TYPE = "application/octet-stream"
_PICTURE_TYPES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
_PICTURE_ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})
_SOUNDS = {".ogg": "ogg", ".oga": "ogg", ".m4a": "mp4", ".flac": "flac", ".amr": "amr", ".wav": "wav"}
"""What the table of Python does not have, or has by another name in each version."""


def media_type_of(name: str, declared: str, picture: Picture | None) -> str:
    """The media type: that of the content if it is a picture, else the claimed one if it is possible."""
    if picture is not None:
        return picture.media_type
    said = declared.partition(";")[0].strip().lower()
    if not _MEDIA_TYPE.fullmatch(said) or said == _UNKNOWN_TYPE:
        said = (_types().guess_type(safe_name(name), strict=False)[0] or "").lower()
    # What calls itself a picture of a kind that is recognised, and was not, is something else.
    return said if said and said not in _PICTURE_TYPES else _UNKNOWN_TYPE


@cache
def _types() -> mimetypes.MimeTypes:
    """Python's own table, without what this machine adds to it; made for the first file without a type."""
    types = mimetypes.MimeTypes()
    for ending, kind in _SOUNDS.items():
        types.add_type(f"audio/{kind}", ending)
    return types


def ending_of(name: str, picture: Picture | None) -> str:
    """The file name's ending on this machine: a picture's own, or a harmless one of the claimed name."""
    if picture is not None:
        return picture.extension
    ending = safe_extension(safe_name(name))
    return ".bin" if ending in _PICTURE_ENDINGS else ending
