"""The interface of speech output, as the gateway uses it, and its result: a sound for a voice message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agent_core.media.sound_file import Sound, opus_in


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
        return "audio/wav", None
    if content.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")):
        return "audio/mpeg", None
    raise ValueError("neither Ogg, WAV nor MP3")
