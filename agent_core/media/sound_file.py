"""
Determines format, length and waveform of a sound file without decoding it. Pure. The length decides whether a
file is sent to a provider; it is what the file claims (Ogg: RFC 7845, section 4; frames of MP3 are counted),
and the engine measures again after decoding. The waveform is drawn from the sizes of Opus packets: a picture
for people, not a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

_MAX_PARTS = 400_000
"""The most pages, chunks or boxes that are read; a day of sound has fewer."""
_MAX_FRAMES = 1_600_000
"""Of MP3; four hours of 10 ms each have fewer."""
_PAGE_HEAD = 27
_UNKNOWN_LENGTH = "does not say how long it is"


class NotAudio(ValueError):
    """The file cannot be transcribed. The text continues after "it", and anybody may read it."""


@dataclass(frozen=True, slots=True)
class SoundFile:
    """The format of a file, and its length."""

    kind: Literal["ogg", "wav", "mp3", "m4a"]
    seconds: float


def sound_file_of(content: bytes) -> SoundFile:
    """The format of a file. Raises `NotAudio`: it is not a known sound file, or damaged, or a video."""
    if not content:
        raise NotAudio("is empty")
    try:
        if content.startswith(b"OggS"):
            return SoundFile("ogg", _ogg_seconds(content))
        if content.startswith((b"RIFF", b"RF64")) and content[8:12] == b"WAVE":
            return SoundFile("wav", _wav_seconds(content))
        if content[4:8] == b"ftyp":
            return SoundFile("m4a", _mp4_seconds(content))
        if content.startswith(b"\x1a\x45\xdf\xa3"):
            raise NotAudio("is a WebM or Matroska file, whose length I cannot tell")
        if (seconds := _mp3_seconds(content)) > 0:
            return SoundFile("mp3", seconds)
    except (IndexError, ZeroDivisionError) as error:
        raise NotAudio("is damaged") from error
    raise NotAudio("is not a sound file that I know; I know Ogg, WAV, MP3 and M4A")


# ── Ogg (RFC 3533) ──


_VIDEO = (b"\x80theora", b"BBCD", b"OVP80")


def _ogg_seconds(content: bytes) -> float:
    """Return the length of the first sound in an Ogg file."""
    serial, hz, skipped = b"", 0, 0
    for stream, head in _ogg_streams(content):
        if head.startswith(_VIDEO):
            raise NotAudio("is a video")
        if serial or not head.startswith((b"OpusHead", b"\x01vorbis", b"Speex   ")):
            continue
        serial = stream
        if head.startswith(b"OpusHead"):  # RFC 7845, section 4
            hz, skipped = 48_000, int.from_bytes(head[10:12], "little")
        else:
            rate = 12 if head.startswith(b"\x01vorbis") else 36
            hz = int.from_bytes(head[rate : rate + 4], "little")
    if not serial:
        raise NotAudio("is an Ogg file without a sound that I know")
    return max(_last_position(content, serial) - skipped, 0) / hz


def _ogg_streams(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Number and first packet's beginning of each stream; their pages come before all others."""
    at = 0
    while content[at : at + 4] == b"OggS" and content[at + 5] & 2:
        body = at + _PAGE_HEAD + content[at + 26]
        yield content[at + 14 : at + 18], content[body : body + 48]
        at = body + sum(content[at + _PAGE_HEAD : body])


def _last_position(content: bytes, serial: bytes) -> int:
    """The position at the end of a stream's last page that has one, in samples."""
    at = len(content)
    for _ in range(_MAX_PARTS):
        at = content.rfind(b"OggS", 0, at)
        if at < 0:
            raise NotAudio(_UNKNOWN_LENGTH)
        position = int.from_bytes(content[at + 6 : at + 14], "little", signed=True)
        if position > 0 and content[at + 14 : at + 18] == serial:
            return position
    raise NotAudio("has too many parts")


# ── WAV ──


def wav_chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the place and the told size of each chunk's content. Raises `NotAudio`: endless."""
    at = 12
    for _ in range(_MAX_PARTS):
        if at + 8 > len(content):
            return
        size = int.from_bytes(content[at + 4 : at + 8], "little")
        yield content[at : at + 4], at + 8, size
        at += 8 + size + size % 2
    raise NotAudio("has too many parts")


def _wav_seconds(content: bytes) -> float:
    per_second, total = 0.0, 0
    for name, body, size in wav_chunks(content):
        if name == b"fmt " and not per_second:
            hz, per_second = (int.from_bytes(content[at : at + 4], "little") for at in (body + 4, body + 8))
            per_second = per_second or hz * content[body + 2] * content[body + 14] / 8  # some write none
        elif name == b"data":
            # A stream may not know its size: what is there counts.
            total += min(size, len(content) - body) or len(content) - body
    return total / per_second


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
    """Return the total seconds of the MP3 frames; 0 if the content does not begin with two frames."""
    at = 0
    for _ in range(_MAX_PARTS):
        if content[at : at + 3] != b"ID3" or at + 10 > len(content):
            break
        size = sum(
            part << shift for part, shift in zip(content[at + 6 : at + 10], (21, 14, 7, 0), strict=True)
        )
        at += 10 + size
    else:
        raise NotAudio("has too many parts")
    size, lasts = _frame(content, at)
    if not size or not _frame(content, at + size)[0]:
        return 0.0
    total = 0.0
    for _ in range(_MAX_FRAMES):
        size, lasts = _frame(content, at)
        if not size:
            at = content.find(b"\xff", at + 1)
            if at < 0:
                return total
            continue
        total += lasts
        at += size
    raise NotAudio("has too many parts")


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

_INSIDE = (b"moov", b"trak", b"mdia")


def _mp4_seconds(content: bytes) -> float:
    lasts, longest, sounds, at = 0.0, 0.0, 0, 0
    for _ in range(_MAX_PARTS):
        if at + 8 > len(content):
            break
        size, name, body = _box(content, at)
        at = body if name in _INSIDE else at + size
        if name == b"mdhd":  # before the handler, in the same track
            lasts = _track_seconds(content[body : body + 32])
        elif name == b"hdlr" and content[body + 8 : body + 12] == b"vide":
            raise NotAudio("is a video")
        elif name == b"hdlr" and content[body + 8 : body + 12] == b"soun":
            sounds, longest = sounds + 1, max(longest, lasts)
    else:
        raise NotAudio("has too many parts")
    if not sounds:
        raise NotAudio("is an M4A file without sound")
    if not longest:  # one in fragments
        raise NotAudio(_UNKNOWN_LENGTH)
    return longest


def _box(content: bytes, at: int) -> tuple[int, bytes, int]:
    """Size, name and where its content begins."""
    size, body = int.from_bytes(content[at : at + 4], "big"), at + 8
    if size == 1:
        size, body = int.from_bytes(content[at + 8 : at + 16], "big"), at + 16
    elif size == 0:
        size = len(content) - at
    if size < body - at or at + size > len(content):
        raise NotAudio("is damaged")
    return size, content[at + 4 : at + 8], body


def _track_seconds(head: bytes) -> float:
    """The length that a track's head says; all ones mean that nobody knows it."""
    at, width = (20, 8) if head[:1] == b"\x01" else (12, 4)
    lasts = head[at + 4 : at + 4 + width]
    return (
        0.0
        if lasts == b"\xff" * width
        else int.from_bytes(lasts, "big") / int.from_bytes(head[at : at + 4], "big")
    )


WAVEFORM_MAX = 1024
"""The loudest value (MSC3246)."""
_SAMPLES_PER_S = 48_000

_MAX_HOURS = 24
_MAX_PAGES = 100_000
"""A day of sound has about as many."""


@dataclass(frozen=True, slots=True)
class Sound:
    """The length of a sound, and its loudness in equal parts, from 0 to `WAVEFORM_MAX`."""

    duration_s: float
    waveform: tuple[int, ...]


def opus_in(content: bytes) -> Sound | None:
    """The sound of one Opus stream in Ogg; None if the content is anything else."""
    sizes: list[int] = []
    played = 0
    head = b""
    for number, (granule, packets) in enumerate(_pages(content)):
        for packet in packets:
            if not head:
                head = content[slice(*packet)]
                if not head.startswith(b"OpusHead") or len(head) < 19:
                    return None
            else:
                sizes.append(packet[1] - packet[0])
        played = granule if granule > 0 else played
        if len(sizes) > 400_000 or number >= _MAX_PAGES:
            return None
    if len(sizes) < 2:
        return None
    skipped = int.from_bytes(head[10:12], "little")
    duration_s = (played - skipped) / _SAMPLES_PER_S
    if not 0 < duration_s <= _MAX_HOURS * 3600:
        return None
    return Sound(duration_s, waveform_of(sizes[1:]))  # the first one after the head has the title


def _pages(content: bytes) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """
    Yield each page's granule position and the offsets of its packets.

    A packet that continues in the next page counts as two, which hardly changes the waveform.
    """
    at = 0
    while content[at : at + 5] == b"OggS\0" and len(content) >= at + _PAGE_HEAD:
        segments = content[at + 26]
        lacing = content[at + _PAGE_HEAD : at + _PAGE_HEAD + segments]
        granule = int.from_bytes(content[at + 6 : at + 14], "little", signed=True)
        begins = here = at + _PAGE_HEAD + segments
        packets = []
        for size in lacing:
            here += size
            if size < 255:
                packets.append((begins, here))
                begins = here
        if here > begins:
            packets.append((begins, here))
        if here > len(content):
            return
        yield granule, packets
        at = here


def waveform_of(levels: Sequence[int]) -> tuple[int, ...]:
    """Any number of levels as the number of bars that clients show; the loudest has full height."""
    if not levels:
        return ()
    bars = min(100, len(levels))
    means = []
    for bar in range(bars):
        part = levels[bar * len(levels) // bars : (bar + 1) * len(levels) // bars]
        means.append(sum(part) / len(part))
    least, most = min(means), max(means)
    span = (most - least) or 1.0
    return tuple(round((mean - least) / span * WAVEFORM_MAX) for mean in means)
