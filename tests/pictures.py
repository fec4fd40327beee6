"""Small pictures for tests, made byte by byte."""

from __future__ import annotations

import struct
import zlib


def png(width: int = 3, height: int = 2) -> bytes:
    """A whole, grey PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = (b"\0" + b"\x80" * width) * height
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def jpeg(width: int = 640, height: int = 480, *, padding: int = 0) -> bytes:
    """The segments of a JPEG up to its frame; ``padding`` bytes of a profile stand before the size."""
    profile = b"\xff\xe2" + struct.pack(">H", padding + 2) + b"\0" * padding if padding else b""
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    return b"\xff\xd8\xff\xe0\x00\x10JFIF" + b"\0" * 10 + profile + frame + b"\xff\xd9"


def gif(width: int = 20, height: int = 10) -> bytes:
    """The beginning of a GIF."""
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def webp(kind: str = "VP8X", width: int = 300, height: int = 200) -> bytes:
    """The beginning of a WebP picture: lossy (``VP8 ``), lossless (``VP8L``) or extended (``VP8X``)."""
    if kind == "VP8 ":
        body = b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height)
    elif kind == "VP8L":
        body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little") + b"\0" * 6
    else:
        body = b"\0" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    data = b"WEBP" + kind.encode() + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(data)) + data
