"""
Reads the length and the waveform of an Ogg file of Opus without decoding it. Pure.

Duration: the last page names how many samples of 48 kHz have been played by its end (RFC 7845, section 4).
Loudness: Opus gives loud and busy moments more bytes, so the sizes of its packets, which last equally long,
draw the waveform that clients show. It is a picture for people, not a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WAVEFORM_MAX = 1024
"""The loudest value (MSC3246)."""
_BARS = 100
_SAMPLES_PER_S = 48_000
_PAGE_HEAD = 27
_MOST_HOURS = 24
_MOST_PAGES = 100_000
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
        if len(sizes) > 400_000 or number >= _MOST_PAGES:
            return None
    if len(sizes) < 2:
        return None
    skipped = int.from_bytes(head[10:12], "little")
    duration_s = (played - skipped) / _SAMPLES_PER_S
    if not 0 < duration_s <= _MOST_HOURS * 3600:
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
    bars = min(_BARS, len(levels))
    means = []
    for bar in range(bars):
        part = levels[bar * len(levels) // bars : (bar + 1) * len(levels) // bars]
        means.append(sum(part) / len(part))
    least, most = min(means), max(means)
    span = (most - least) or 1.0
    return tuple(round((mean - least) / span * WAVEFORM_MAX) for mean in means)
