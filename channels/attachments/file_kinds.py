"""
Determines the type of a file, from its content if possible, and makes file names that strangers chose safe to
show, store and send on. Pure. On this machine content is kept only under extensions that no system runs, else
as ``.bin``.
"""

from __future__ import annotations

import mimetypes
import re
import unicodedata
from functools import cache

from channels.attachments.attachment_pictures import Picture

MAX_NAME_BYTES = 120
_SEPARATORS = re.compile(r"[/\\]")
_SPACE = re.compile(r"\s+")
_FORBIDDEN = frozenset('<>:"|?*')
"""No harm here, but systems to which a file is saved later refuse them."""
_HARMLESS = """
txt md csv tsv json yaml yml toml ini log ics vcf eml tex rst pdf rtf odt ods odp docx xlsx pptx epub
png jpg jpeg gif webp heic heif bmp tif tiff
mp3 ogg oga opus m4a aac wav flac weba mp4 m4v mov webm mkv avi 3gp
zip gz bz2 xz zst tar 7z
"""
_EXTENSIONS = frozenset(_HARMLESS.split())


def safe_name(name: str, *, fallback: str = "file") -> str:
    """
    Make a safe file name from any text: total, and idempotent.

    The last path part without control, surrogate and direction characters or leading dots, at most
    `MAX_NAME_BYTES` of UTF-8, shortened before the extension; ``fallback`` if nothing is left.
    """
    text = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode("utf-8"))
    # A name like "a/../b" is its last part; one that ends in a separator is what stands before it.
    parts = [part for part in _SEPARATORS.split(text) if part.strip(". \t\r\n\0")]
    text = parts[-1] if parts else ""
    text = "".join(" " if char.isspace() else char for char in text)
    text = "".join("_" if char in _FORBIDDEN else char for char in text if not _is_hidden(char))
    text = _SPACE.sub(" ", text).strip(" .")
    return _shortened(text) or fallback


def safe_extension(name: str) -> str:
    """The ending for storing the content, with its dot: one of a list of harmless ones, or ``.bin``."""
    _, dot, extension = name.rpartition(".")
    extension = extension.lower()
    return f".{extension}" if dot and extension in _EXTENSIONS else ".bin"


def _is_hidden(char: str) -> bool:
    """Control characters, those for the direction of writing, and others without a shape of their own."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _shortened(text: str) -> str:
    if len(text.encode()) <= MAX_NAME_BYTES:
        return text
    stem, dot, extension = text.rpartition(".")
    if not dot or not stem or len(extension.encode()) > 16:
        stem, ending = text, ""
    else:
        ending = f".{extension}"
    room = MAX_NAME_BYTES - len(ending.encode())
    return stem.encode()[:room].decode("utf-8", "ignore").rstrip(" .") + ending


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
