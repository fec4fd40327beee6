"""
Converts a provider's WAV or MP3 into Opus in Ogg, the format of voice messages, in a process of its own.
Where that is not installed or fails, the sound is sent as the file that it is.

Trap: libsndfile guesses how long an MP3 without a table of contents is and reads no further, so what it has
read is compared with the length that its frames have.
"""

from __future__ import annotations

import base64
import importlib.util
import sys
from dataclasses import replace

import anyio
import anyio.to_thread
import structlog

from agent_core.child_process.process import CallFailed, ChildProcess
from agent_core.voice.ogg import Sound, opus_in
from agent_core.voice.sound_file import sound_file_of
from agent_core.voice.speech import Speaks, Spoken

_LIMIT_S = 115.0
"""For all of it, with the speaking: a delivery has two minutes, and what it cuts off is paid once more."""
_MOST_BYTES = 500_000_000
_LESS_S = 0.5
"""So much may be missing: the silence with which an MP3 begins and ends."""
_log = structlog.get_logger(__name__)


def can_make_opus() -> bool:
    """Whether the library for it is installed (extra ``speak``)."""
    return importlib.util.find_spec("soundfile") is not None


class OpusSpeech:
    """
    Implements `Speaks` by converting the output of another one.

    Args:
        idle_s: After so long without a sound the process ends.
        command: What is started, for tests.
    """

    def __init__(self, inner: Speaks, *, idle_s: float, command: tuple[str, ...] | None = None) -> None:
        self._inner = inner
        child = (sys.executable, "-m", "agent_core.voice.opus_child")
        self.process = ChildProcess("opus", command or child, idle_s=idle_s, most_bytes=_MOST_BYTES)

    async def speak(self, text: str) -> Spoken:
        """The text as sound; see `Speaks`. It has been paid for by now, so no failure here loses it."""
        until = anyio.current_time() + _LIMIT_S
        spoken = await self._inner.speak(text)
        if spoken.media_type == "audio/ogg":
            return spoken
        try:
            content, sound = await self._converted(spoken.content, until - anyio.current_time())
        except (CallFailed, ValueError) as error:
            _log.warning("speech.not_converted", error=str(error), media_type=spoken.media_type)
            return spoken
        return replace(spoken, content=content, media_type="audio/ogg", sound=sound)

    async def _converted(self, content: bytes, limit_s: float) -> tuple[bytes, Sound]:
        """The same as Opus in Ogg. Raises ValueError and CallFailed."""
        request, told = {"sound": base64.b64encode(content).decode()}, None
        with anyio.move_on_after(limit_s):  # the start of the process, too
            told = await self.process.whole(request, task="opus", limit_s=limit_s)
        made = base64.b64decode(told or "", validate=True)
        sound, lasts = opus_in(made), await anyio.to_thread.run_sync(sound_file_of, content)
        if sound is None or sound.duration_s < lasts.seconds - _LESS_S:
            raise ValueError("nothing came of it, or a part would be missing")
        return made, sound

    async def aclose(self) -> None:
        """Close both."""
        await self._inner.aclose()
        await self.process.aclose()
