"""The interface of speech output, as the gateway uses it, and its result: a sound for a voice message."""

from __future__ import annotations

import array
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from agent_core.media.sound_file import Sound, opus_in, wav_chunks, waveform_of

_MAX_LEVELS = 10_000


@dataclass(frozen=True, slots=True)
class SpeechResult:
    """A text as sound (None: duration unknown, a plain file), its cost and provider calls."""

    content: bytes
    media_type: str
    sound: Sound | None = None
    model: str = ""
    cost_usd: float | None = None
    calls: int = 1

    @property
    def name(self) -> str:
        """The file's name."""
        endings = {"audio/ogg": ".ogg", "audio/wav": ".wav", "audio/mpeg": ".mp3"}
        return "Voice message" + endings.get(self.media_type, ".bin")


class SpeechPort(Protocol):
    """A speech provider, or an engine on this machine."""

    async def speak(self, text: str) -> SpeechResult:
        """The text as sound. Raises `ModelError`: it was not spoken; temporary or not."""
        ...

    async def aclose(self) -> None:
        """Close connections and processes. A later `speak` opens new ones."""
        ...


def cost_of_chars(text: str, usd_per_million: float | None) -> float | None:
    """The cost of speaking a text; None if it is unknown."""
    return None if usd_per_million is None else len(text) * usd_per_million / 1_000_000


def spoken_of(content: bytes) -> tuple[str, Sound | None]:
    """Return media type and facts of a sound, by its content. Raises ValueError if it is none."""
    if content.startswith(b"OggS"):
        return "audio/ogg", opus_in(content)
    if content.startswith(b"RIFF") and content[8:12] == b"WAVE":
        return "audio/wav", wave_in(content)
    if content.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")):
        return "audio/mpeg", None
    raise ValueError("neither Ogg, WAV nor MP3")


def wave_in(content: bytes) -> Sound | None:
    """Return the sound of a WAV of 16 bits, else None. A stream says nothing true of its size."""
    rate, channels = 0, 0
    for name, body, size in islice(wav_chunks(content), 1000):
        if name == b"fmt ":
            if content[body : body + 2] != b"\x01\0" or content[body + 14 : body + 16] != b"\x10\0":
                return None
            channels = int.from_bytes(content[body + 2 : body + 4], "little")
            rate = int.from_bytes(content[body + 4 : body + 8], "little")
        elif name == b"data" and rate and channels:
            return _levels_of(content[body : body + size], rate * channels)
    return None


def _levels_of(pcm: bytes, per_s: int) -> Sound | None:
    samples = array.array("h", pcm[: len(pcm) // 2 * 2])
    if sys.byteorder == "big":
        samples.byteswap()
    if not 0 < len(samples) / per_s <= 24 * 3600:
        return None
    step = max(1, per_s // 50, len(samples) // _MAX_LEVELS)
    levels = [max(map(abs, samples[first : first + step : 8])) for first in range(0, len(samples), step)]
    return Sound(len(samples) / per_s, waveform_of(levels))
