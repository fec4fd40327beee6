"""
A stand-in for a provider of speech: ``/v1/audio/speech`` as OpenAI has it, with sounds that any client plays.

What it gives is silence, or a tone as WAV, as long as the text would take. Opus is not encoded but put
together: a frame that says nothing has three bytes, and padding makes it as large as wanted (RFC 6716,
section 3.2.5), so that the waveform has something to show.
"""

from __future__ import annotations

import array
import math
from typing import TYPE_CHECKING, Any

from devservers.provider import ProviderServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHARS_PER_S = 15.0
_FRAME = 960
_SKIPPED = 312
_POLYNOMIAL = 0x04C11DB7
_SEGMENTS = 200


def _crc(data: bytes) -> int:
    value = 0
    for byte in data:
        value ^= byte << 24
        for _ in range(8):
            value = ((value << 1) ^ _POLYNOMIAL if value & 0x80000000 else value << 1) & 0xFFFFFFFF
    return value


def _page(packets: Sequence[bytes], granule: int, number: int, kind: int) -> bytes:
    lacing = b"".join(b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255]) for packet in packets)
    head = b"OggS\0" + bytes([kind]) + granule.to_bytes(8, "little") + (7).to_bytes(4, "little")
    head += number.to_bytes(4, "little")
    rest = bytes([len(lacing)]) + lacing + b"".join(packets)
    return head + _crc(head + bytes(4) + rest).to_bytes(4, "little") + rest


def opus_of(seconds: float) -> bytes:
    """So many seconds of silence as Opus in Ogg, with frames of different sizes."""
    head = b"OpusHead\x01\x01" + _SKIPPED.to_bytes(2, "little") + (24_000).to_bytes(4, "little") + b"\0\0\0"
    title = b"OpusTags" + (5).to_bytes(4, "little") + b"squid" + bytes(4)
    frames = []
    for number in range(max(1, round(seconds * 50))):
        padding = int(60 + 60 * math.sin(number / 7))
        frames.append(b"\xfb\x41" + bytes([padding]) + b"\xff\xfe" + bytes(padding))
    pages = [_page([head], 0, 0, 2), _page([title], 0, 1, 0)]
    for first in range(0, len(frames), _SEGMENTS):
        some = frames[first : first + _SEGMENTS]
        done = first + len(some)
        pages.append(_page(some, _SKIPPED + done * _FRAME, len(pages), 4 if done == len(frames) else 0))
    return b"".join(pages)


def wav_of(seconds: float, rate: int = 8000) -> bytes:
    """So many seconds of a tone that swells, as WAV of 16 bits; as in a stream its size is not told."""
    count = round(seconds * rate)
    samples = array.array(
        "h", (round(20_000 * n / max(count, 1) * math.sin(n * 440 * math.tau / rate)) for n in range(count))
    )
    form = (1).to_bytes(2, "little") + (1).to_bytes(2, "little") + rate.to_bytes(4, "little")
    form += (rate * 2).to_bytes(4, "little") + (2).to_bytes(2, "little") + (16).to_bytes(2, "little")
    endless = b"\xff\xff\xff\xff"
    return (
        b"RIFF"
        + endless
        + b"WAVEfmt "
        + (16).to_bytes(4, "little")
        + form
        + b"data"
        + endless
        + samples.tobytes()
    )


class SpeechServer(ProviderServer):
    """The server. ``given`` has the texts whose sounds were sent whole."""

    def __init__(self, *, wait_s: float = 0.0) -> None:
        super().__init__("/audio/speech", wait_s=wait_s)
        self.given: list[str] = []

    def seconds_of(self, text: str) -> float:
        """How long it takes to read a text aloud."""
        return max(0.1, len(text) / CHARS_PER_S)

    def right_answer(self, body: Mapping[str, Any]) -> tuple[bytes, str]:
        """A sound as long as the text."""
        seconds = self.seconds_of(body["input"])
        sound = wav_of(seconds) if body.get("response_format") == "wav" else opus_of(seconds)
        return sound, "audio/ogg"

    def was_given(self, body: Mapping[str, Any]) -> None:
        """See `ProviderServer.was_given`."""
        self.given.append(body["input"])
