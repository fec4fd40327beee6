"""Sound files for tests, made without an encoder: WAV, Ogg with Opus packets, MP3 and M4A that hold silence."""

from __future__ import annotations

import struct


def wav(seconds: float = 1.0, *, says: str = "", hz: int = 8000, filler: bytes = b"\0\0") -> bytes:
    """16 bits, one channel; what it ``says`` stands in a comment, where the stand-in server reads it."""
    data = filler * round(seconds * hz)
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, hz, hz * 2, 2, 16)
    note = says.encode() + b"\0" * (len(says.encode()) % 2)
    info = b"INFO" + struct.pack("<4sI", b"ICMT", len(note)) + note if says else b""
    more = struct.pack("<4sI", b"LIST", len(info)) + info if says else b""
    body = b"WAVE" + fmt + more + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def ogg_page(packets: list[bytes], *, serial: int = 1, granule: int = 0, kind: int = 0) -> bytes:
    """One page with whole packets (its checksum is wrong, which nobody here looks at)."""
    lacing = b"".join(b"\xff" * (len(one) // 255) + bytes([len(one) % 255]) for one in packets)
    head = struct.pack("<4sBBqIIIB", b"OggS", 0, kind, granule, serial, 0, 0, len(lacing))
    return head + lacing + b"".join(packets)


def ogg_opus(seconds: float, *, serial: int = 1, granule: int | None = None, says: str = "") -> bytes:
    """Packets of 20 ms each; the pages say ``granule``, whatever the packets hold."""
    head = b"OpusHead" + struct.pack("<BBHIHB", 1, 1, 312, 48_000, 0, 0)
    note = f"says={says}".encode()
    tags = b"OpusTags" + struct.pack("<I", 0) + struct.pack("<II", 1, len(note)) + note
    packet = bytes([0x78]) + b"\x01" * 9  # hybrid, 20 ms, one frame
    count = round(seconds * 50)
    told = count * 960 + 312 if granule is None else granule
    pages = [ogg_page([head], serial=serial, kind=2), ogg_page([tags], serial=serial)]
    for first in range(0, count, 100):
        pages.append(ogg_page([packet] * min(100, count - first), serial=serial, granule=told))
    return b"".join(pages)


def mp3(seconds: float) -> bytes:
    """Frames of MPEG-1 layer III at 128 kbit/s, behind a tag."""
    frame = b"\xff\xfb\x90\x00" + bytes(413)
    return b"ID3\x04\0\0\0\0\0\x05" + bytes(5) + frame * round(seconds * 44_100 / 1152)


def _box(name: bytes, *inside: bytes) -> bytes:
    body = b"".join(inside)
    return struct.pack(">I4s", 8 + len(body), name) + body


def m4a(
    seconds: float, *, handlers: tuple[bytes, ...] = (b"soun",), told: int | None = None, version: int = 0
) -> bytes:
    """Tracks of AAC with these handlers. ``told`` is what their heads say of their length, in samples."""
    lasts = round(seconds * 44_100) if told is None else told
    head = struct.pack(">IIIII" if version == 0 else ">IQQIQ", version << 24, 0, 0, 44_100, lasts)
    tracks = [
        _box(
            b"trak",
            _box(b"tkhd", bytes(84)),
            _box(
                b"mdia",
                _box(b"mdhd", head),
                _box(b"hdlr", struct.pack(">II4s", 0, 0, handler)),
                _box(b"minf", _box(b"stbl", _box(b"stsd", bytes(44)))),
            ),
        )
        for handler in handlers
    ]
    return _box(b"ftyp", b"M4A \0\0\0\0") + _box(b"mdat", bytes(100)) + _box(b"moov", *tracks)
