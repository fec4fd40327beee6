"""
Makes file names that strangers chose safe to show, to store and to send on. Pure.

`safe_name` keeps what a person would recognise the file by. `safe_extension` decides under which ending the
content is kept on this machine: one from a list of kinds that no system runs when they are opened, else
``.bin``.
"""

from __future__ import annotations

import re
import unicodedata

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
