"""
Reads the type and the size of a picture from its first bytes. Pure; no pixel is ever decoded. Four kinds are
known, the ones that models look at: PNG, JPEG, WebP and GIF. What does not begin like one of them, or does
not say how large it is, is no picture for us, whatever its name and its sender say.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEAD_BYTES = 256 * 1024
"""The part of a file that is read: a JPEG may have a preview and colour profiles before its size."""

_NO_SIZE_MARKERS = frozenset({0x01, *range(0xD0, 0xDA)})
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


@dataclass(frozen=True, slots=True)
class Picture:
    """The kind of a picture and its size in pixels."""

    media_type: str
    width: int
    height: int

    @property
    def extension(self) -> str:
        """The usual ending of the file's name, with its dot."""
        return {"image/jpeg": ".jpg"}.get(self.media_type, "." + self.media_type.partition("/")[2])


def picture_in(head: bytes) -> Picture | None:
    """The picture whose file begins with ``head`` (`HEAD_BYTES`, or all of it); None if there is none."""
    found = _png(head) or _gif(head) or _webp(head) or _jpeg(head)
    return found if found is not None and found.width > 0 and found.height > 0 else None


def _png(head: bytes) -> Picture | None:
    if not head.startswith(b"\x89PNG\r\n\x1a\n") or head[12:16] != b"IHDR" or len(head) < 24:
        return None
    width, height = struct.unpack(">II", head[16:24])
    return Picture("image/png", width, height)


def _gif(head: bytes) -> Picture | None:
    if head[:6] not in (b"GIF87a", b"GIF89a") or len(head) < 10:
        return None
    width, height = struct.unpack("<HH", head[6:10])
    return Picture("image/gif", width, height)


def _webp(head: bytes) -> Picture | None:
    """RFC 9649: a RIFF container with a lossy, a lossless or an extended first chunk."""
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return None
    match head[12:16]:
        case b"VP8 " if head[23:26] == b"\x9d\x01\x2a":
            width, height = struct.unpack("<HH", head[26:30])
            return Picture("image/webp", width & 0x3FFF, height & 0x3FFF)
        case b"VP8L" if head[20] == 0x2F:
            bits = int.from_bytes(head[21:25], "little")
            return Picture("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8X":
            width = int.from_bytes(head[24:27], "little") + 1
            return Picture("image/webp", width, int.from_bytes(head[27:30], "little") + 1)
        case _:
            return None


def _jpeg(head: bytes) -> Picture | None:
    """ITU-T T.81, B.1: segments with their lengths, until the one that begins the frame."""
    if not head.startswith(b"\xff\xd8\xff"):
        return None
    at = 2
    for _ in range(1000):
        if at + 4 > len(head) or head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker == 0xFF:  # filling
            at += 1
        elif marker in _NO_SIZE_MARKERS:
            at += 2
        elif marker in _FRAME_MARKERS:
            if at + 9 > len(head):
                return None
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return Picture("image/jpeg", width, height)
        else:
            at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4], "big"))
    return None
