"""
Determines the format and the length of a sound file from its content, without decoding it. Pure.

The duration decides whether a file is sent to a provider and what that costs, so nothing that a file says in
its head is believed where what it holds can be counted: Opus packets and MP3 frames say how long each of them
lasts, WAV has a fixed number of bytes for each second, and M4A lists its samples. Ogg Vorbis, Speex and M4A
also tell their own length. It is believed if it is not less than the shortest that so many packets can last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

_MOST_PARTS = 400_000
"""So many pages, chunks, boxes or entries of a table are looked at; a day of sound has fewer."""
_MOST_PACKETS = 1_600_000
"""So many packets or frames; four hours of 10 ms each have fewer."""
_OPUS_HZ = 48_000
_OPUS_FRAME = (
    *(480, 960, 1920, 2880) * 3,
    *(480, 960) * 2,
    *(120, 240, 480, 960) * 4,
)
"""Samples of one frame, by the configuration in a packet's first byte (RFC 6716, table 2)."""
_PAGE_HEAD = 27
_MOST_HZ = 768_000
_MOST_CHANNELS = 32


class NotASound(ValueError):
    """The file cannot be transcribed. The text continues after "it", and anybody may read it."""


@dataclass(frozen=True, slots=True)
class SoundFile:
    """The format of a file, and its length."""

    kind: Literal["ogg", "wav", "mp3", "m4a"]
    seconds: float


def sound_file_of(content: bytes) -> SoundFile:
    """The format of a file. Raises `NotASound`: it is not a known sound file, or damaged, or a video."""
    if not content:
        raise NotASound("is empty")
    try:
        if content.startswith(b"OggS"):
            return SoundFile("ogg", _ogg_seconds(content))
        if content.startswith((b"RIFF", b"RF64")) and content[8:12] == b"WAVE":
            return SoundFile("wav", _wav_seconds(content))
        if content[4:8] == b"ftyp":
            return SoundFile("m4a", _mp4_seconds(content))
        if content.startswith(b"\x1a\x45\xdf\xa3"):
            raise NotASound("is a WebM or Matroska file, whose length I cannot tell")
        if (seconds := _mp3_seconds(content)) > 0:
            return SoundFile("mp3", seconds)
    except (IndexError, ZeroDivisionError) as error:
        raise NotASound("is damaged") from error
    raise NotASound("is not a sound file that I know; I know Ogg, WAV, MP3 and M4A")


# ── Ogg (RFC 3533) ──


_CODECS = (
    (b"OpusHead", "opus"),
    (b"\x01vorbis", "vorbis"),
    (b"Speex   ", "speex"),
    *((begins, "video") for begins in (b"\x80theora", b"BBCD", b"OVP80")),
    *((begins, "about") for begins in (b"fishead\0", b"CMML", b"\x80kate")),
)
"""What a stream is by the beginning of its first packet; ``about`` has texts."""
_TOLD = ("vorbis", "speex")
"""Whose pages tell how long they are."""


@dataclass(slots=True)
class _Stream:
    """
    One logical stream. ``samples`` is what its packets last, or what its pages say if packets do not; then
    each packet lasts ``least`` or more.
    """

    codec: str = ""
    hz: int = 0
    samples: int = 0
    heads: int = 0
    least: int = 0
    packets: int = 0

    def seconds(self) -> float:
        return max(self.samples, self.packets * self.least) / self.hz if self.hz else 0.0


@dataclass(slots=True)
class _Page:
    serial: int
    granule: int
    begins_stream: bool
    packets: list[int] = field(default_factory=list)
    """Where the packets begin that begin in it."""


def _ogg_seconds(content: bytes) -> float:
    streams: list[_Stream] = []
    current: dict[int, _Stream] = {}
    for page in _pages(content):
        if page.begins_stream or page.serial not in current:
            current[page.serial] = _Stream()
            streams.append(current[page.serial])
        stream = current[page.serial]
        for start in page.packets:
            _hear_packet(stream, content, start)
        if stream.codec in _TOLD:
            stream.samples = max(stream.samples, page.granule)
    codecs = {stream.codec for stream in streams}
    if "video" in codecs:
        raise NotASound("is a video")
    if not codecs & {"opus", *_TOLD}:
        raise NotASound("is an Ogg file without a sound that I know")
    if "other" in codecs:  # which of its streams is played is up to the player
        raise NotASound("has something besides the sound, whose length I cannot tell")
    return sum(stream.seconds() for stream in streams)


def _pages(content: bytes) -> Iterator[_Page]:
    """
    Whatever may be a page, also inside of another one: a player skips a page with a wrong checksum, and goes
    on within it.
    """
    at, looked = 0, 0
    for _ in range(_MOST_PARTS):
        if content[at : at + 4] != b"OggS":
            at = content.find(b"OggS", at)
        if at < 0 or at + _PAGE_HEAD > len(content):
            return
        segments = content[at + 26]
        looked += segments
        if looked > _MOST_PACKETS:
            break
        lacing = content[at + _PAGE_HEAD : at + _PAGE_HEAD + segments]
        granule = int.from_bytes(content[at + 6 : at + 14], "little", signed=True)
        flags = content[at + 5]
        page = _Page(int.from_bytes(content[at + 14 : at + 18], "little"), granule, bool(flags & 2))
        here = at + _PAGE_HEAD + segments
        begins = not flags & 1  # else the first one goes on from the page before
        for size in lacing:
            if begins:
                page.packets.append(here)
            begins = size < 255
            here += size
        yield page
        at += 4
    raise NotASound("has too many parts")


def _hear_packet(stream: _Stream, content: bytes, start: int) -> None:
    """Take one packet into account: the first one says what the stream is."""
    head = content[start : start + 48]
    if not stream.codec:
        _know(stream, head)
    elif stream.codec in _TOLD:
        stream.packets += 1
    elif stream.codec == "opus":
        if stream.heads:
            stream.heads -= 1  # the title and the like
        elif head:
            count = (1, 2, 2, head[1] & 63 if len(head) > 1 else 0)[head[0] & 3]
            stream.samples += _OPUS_FRAME[head[0] >> 3] * count


def _know(stream: _Stream, head: bytes) -> None:
    """What a stream is, by its first packet."""
    stream.codec = next((codec for begins, codec in _CODECS if head.startswith(begins)), "other")
    match stream.codec:
        case "opus":
            stream.hz, stream.heads = _OPUS_HZ, 1
        case "vorbis":
            stream.hz, stream.least = int.from_bytes(head[12:16], "little"), (1 << (head[28] & 15)) // 2
            stream.packets = -2  # two more heads follow
        case "speex":
            stream.hz, stream.least = int.from_bytes(head[36:40], "little"), 160
            stream.packets = -1
    if stream.codec in _TOLD and not 0 < stream.hz <= _MOST_HZ:
        raise NotASound("is damaged")


# ── WAV ──

_BITS = {0x07: 8.0, 0x06: 8.0, 0x02: 4.0, 0x11: 4.0, 0x31: 65 * 8 / 320}
"""Of a sample by the file's coding: µ-law, A-law, two of ADPCM, GSM 6.10 as telephone exchanges mail it."""
_PCM = (0x01, 0x03)
_EXTENSIBLE = 0xFFFE


def _wav_seconds(content: bytes) -> float:
    at, per_second, total = 12, 0.0, 0
    for _ in range(_MOST_PARTS):
        if at + 8 > len(content):
            break
        name, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        body = at + 8
        if name == b"fmt " and not per_second:
            per_second = _wav_pace(content[body : body + 40])
        elif name == b"data":
            # A stream may not know its size: what is there counts.
            total += min(size, len(content) - body) or len(content) - body
        at = body + size + size % 2
    else:
        raise NotASound("has too many parts")
    if not per_second:
        raise NotASound("is damaged")
    return total / per_second


def _wav_pace(head: bytes) -> float:
    """Bytes of a second. What the head says of that itself is not believed."""
    coding, channels = (int.from_bytes(head[at : at + 2], "little") for at in (0, 2))
    if coding == _EXTENSIBLE:
        coding = int.from_bytes(head[24:26], "little")
    hz, told = int.from_bytes(head[4:8], "little"), int.from_bytes(head[14:16], "little")
    bits = min(told + 7, 64) // 8 * 8.0 if coding in _PCM else _BITS.get(coding)
    if not (0 < hz <= _MOST_HZ and 0 < channels <= _MOST_CHANNELS):
        raise NotASound("is damaged")
    if bits is None:
        raise NotASound("is a WAV file in an encoding whose length I cannot tell")
    return hz * channels * bits / 8


# ── MP3 (ISO 11172-3, 13818-3) ──

_KBITS = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""By version (2 and 2.5 are alike) and layer."""
_HZ = (44_100, 48_000, 32_000)
_NOT_A_FRAME = (0, 0.0)


def _mp3_seconds(content: bytes) -> float:
    """What its frames last; 0 if it does not begin with two of them."""
    at = 0
    for _ in range(_MOST_PARTS):
        if content[at : at + 3] != b"ID3" or at + 10 > len(content):
            break
        size = sum(
            part << shift for part, shift in zip(content[at + 6 : at + 10], (21, 14, 7, 0), strict=True)
        )
        at += 10 + size
    else:
        raise NotASound("has too many parts")
    size, lasts = _frame(content, at)
    if not size or not _frame(content, at + size)[0]:
        return 0.0
    total = 0.0
    for _ in range(_MOST_PACKETS):
        size, lasts = _frame(content, at)
        if not size:
            at = content.find(b"\xff", at + 1)
            if at < 0:
                return total
            continue
        total += lasts
        at += size
    raise NotASound("has too many parts")


def _frame(content: bytes, at: int) -> tuple[int, float]:
    """Bytes and seconds of the frame that begins there; zeros if none does."""
    head = content[at : at + 4]
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return _NOT_A_FRAME
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    rate, hz = head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer == 4 or rate in (0, 15) or hz == 3:
        return _NOT_A_FRAME
    kind = 1 if version == 3 else 2
    bits, frequency = _KBITS[kind, layer][rate - 1] * 1000, _HZ[hz] >> {3: 0, 2: 1, 0: 2}[version]
    padding = head[2] >> 1 & 1
    if layer == 1:
        return (12 * bits // frequency + padding) * 4, 384 / frequency
    samples = 576 if layer == 3 and kind == 2 else 1152
    return samples // 8 * bits // frequency + padding, samples / frequency


# ── M4A (ISO 14496-12) ──

_INSIDE = (b"moov", b"trak", b"mdia", b"minf", b"stbl")
_LEAST_S = {b"mp4a": 1024 / 96_000, b"alac": 4096 / 192_000, b".mp3": 576 / 48_000}
"""What a sample lasts at least, by its coding."""
_LEAST_OF_OTHERS_S = 1 / _MOST_HZ


@dataclass(slots=True)
class _Track:
    handler: bytes = b""
    per_second: int = 0
    lasts: int = 0
    samples: int = 0
    coding: bytes = b""

    def seconds(self) -> float:
        least = self.samples * _LEAST_S.get(self.coding, _LEAST_OF_OTHERS_S)
        return max(self.lasts / self.per_second, least)


def _mp4_seconds(content: bytes) -> float:
    tracks: list[_Track] = []
    boxes = [(0, len(content))]
    looked = 0
    while boxes:
        at, end = boxes.pop()
        while at + 8 <= end:
            looked += 1
            if looked > _MOST_PARTS:
                raise NotASound("has too many parts")
            size, name, body = _box(content, at, end)
            if name == b"moof":
                raise NotASound("is an M4A file in fragments, whose length I cannot tell")
            if name == b"trak":
                tracks.append(_Track())
            if name in _INSIDE:
                boxes.append((at + size, end))
                at, end = body, at + size
                continue
            if tracks:
                _note(tracks[-1], name, content[body : at + size])
            at += size
    if any(track.handler == b"vide" for track in tracks):
        raise NotASound("is a video")
    sounds = [track.seconds() for track in tracks if track.handler == b"soun"]
    if not sounds:
        raise NotASound("is an M4A file without sound")
    return max(sounds)


def _box(content: bytes, at: int, end: int) -> tuple[int, bytes, int]:
    """Size, name and where its content begins."""
    size, body = int.from_bytes(content[at : at + 4], "big"), at + 8
    if size == 1:
        size, body = int.from_bytes(content[at + 8 : at + 16], "big"), at + 16
    elif size == 0:
        size = end - at
    if size < body - at or at + size > end:
        raise NotASound("is damaged")
    return size, content[at + 4 : at + 8], body


def _note(track: _Track, name: bytes, body: bytes) -> None:
    if name == b"hdlr":
        track.handler = track.handler or body[8:12]
    elif name == b"mdhd":
        begin = 20 if body[:1] == b"\x01" else 12
        track.per_second = int.from_bytes(body[begin : begin + 4], "big")
    elif name == b"stsd":
        track.coding = track.coding or body[12:16]
    elif name in (b"stsz", b"stz2"):
        track.samples += int.from_bytes(body[8:12], "big")
    elif name == b"stts":
        count = int.from_bytes(body[4:8], "big")
        if count > _MOST_PARTS:
            raise NotASound("has too many parts")
        table = body[8 : 8 + 8 * count]
        track.lasts += sum(
            int.from_bytes(table[at : at + 4], "big") * int.from_bytes(table[at + 4 : at + 8], "big")
            for at in range(0, len(table) - 7, 8)
        )
