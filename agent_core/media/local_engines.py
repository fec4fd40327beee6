"""
Speech on this machine: faster-whisper listens, Piper speaks, and an encoder makes voice messages of sounds.
Each runs in a confined process (`engine_child`), which starts with the first request and ends when idle.
Trap: libsndfile guesses how long an MP3 without a table of contents is and reads no further, so what it has
read is compared with the length that its frames have.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import structlog

from agent_core.children.frames import object_in
from agent_core.children.service import CallFailed, ChildProcess
from agent_core.errors import Failure, ModelError
from agent_core.llm.model_errors import classify
from agent_core.media.media_config import SLOWNESS, SpeakSettings, TranscribeSettings
from agent_core.media.sound_file import Sound, opus_in, sound_file_of
from agent_core.media.speech import SpeechPort, SpeechResult, spoken_of
from agent_core.media.transcript import Clip, Transcript, transcript_in
from agent_core.models import Usage
from agent_core.ports import Clock

_CONVERSION_LIMIT_S = 115.0
"""For a conversion with the speaking: a delivery has two minutes, and what it cuts off is paid once more."""
_LESS_S = 0.5
"""The tolerated difference: the silence with which an MP3 begins and ends."""
_log = structlog.get_logger(__name__)


def missing_packages(extra: str) -> str:
    """Return the command that installs what the extra ``listen`` or ``speak`` has; empty if it is there."""
    packages = {"listen": ("faster_whisper",), "speak": ("piper", "soundfile")}[extra]
    return "" if all(importlib.util.find_spec(name) for name in packages) else f"pip install '.[{extra}]'"


def can_make_opus() -> bool:
    """Return True if the encoder is installed, which the extra ``speak`` has."""
    return importlib.util.find_spec("soundfile") is not None


def engine_command(*arguments: str, python: str = sys.executable) -> tuple[str, ...]:
    """Return the command that starts an engine's process."""
    return (python, "-m", "agent_core.media.engine_child", *arguments)


class LocalEngine:
    """
    An engine in its process, asked with JSON and a limit; free of charge.

    ``extra`` is the installation extra that this Python must have, unless the process has another Python.
    """

    def __init__(self, name: str, process: ChildProcess, clock: Clock, extra: str) -> None:
        self.process = process
        self._name = name
        self._clock = clock
        self._extra = extra

    async def ask(self, request: Mapping[str, Any], *, task: str, limit_s: float) -> Mapping[str, Any]:
        """Return the engine's answer; its start does not count. Raises `ModelError`."""
        is_ours = self.process.command[0] == sys.executable
        if is_ours and (install := missing_packages(self._extra)):
            raise self.error(Failure(status=404, text=f"{self._name} is not installed: {install}"))
        try:
            text = await self.process.ask_text(request, task=task, limit_s=limit_s)
        except CallFailed as error:
            raise self.error(error.failure) from error
        except ValueError as error:
            raise self.error(
                Failure(text=f"the request cannot be handed over: {error}", status=413)
            ) from error
        if text is None:
            raise self.error(Failure(text=f"no answer within {limit_s:g} s", unreadable="slow"))
        try:
            answer: Mapping[str, Any] = object_in(json.loads(text))
        except ValueError as error:
            raise self.malformed_error(error) from error
        _log.info("voice_engine.answered", engine=self._name, memory_mb=answer.get("memory_mb"))
        return answer

    def malformed_error(self, error: Exception) -> ModelError:
        """Return the error for an answer that cannot be read."""
        return self.error(Failure(text=str(error), unreadable="malformed"))

    def error(self, failure: Failure) -> ModelError:
        """Return the error for a failure."""
        return classify(failure, model=self._name, now=self._clock.now())


class LocalSpeech:
    """Implements `SpeechPort` with Piper and a voice file."""

    def __init__(self, settings: SpeakSettings, clock: Clock) -> None:
        self.process = ChildProcess(
            "piper",
            engine_command("piper", settings.model),
            idle_s=settings.idle_minutes * 60,
            most_bytes=1_500_000_000,
        )
        self._limit_s = settings.timeout_s
        self._engine = LocalEngine("piper", self.process, clock, "speak")

    async def speak(self, text: str) -> SpeechResult:
        """Return the text as sound; see `SpeechPort`."""
        answer = await self._engine.ask({"text": text}, task="speech", limit_s=self._limit_s)
        try:
            content = base64.b64decode(answer["sound"], validate=True)
            media_type, sound = spoken_of(content)
        except (ValueError, KeyError, TypeError) as error:
            raise self._engine.malformed_error(error) from error
        return SpeechResult(content, media_type, sound, "local", 0.0, calls=0)

    async def aclose(self) -> None:
        """End the process."""
        await self.process.aclose()


class LocalTranscription:
    """Implements `TranscriptionPort` with faster-whisper."""

    def __init__(self, settings: TranscribeSettings, clock: Clock) -> None:
        self.process = ChildProcess(
            "whisper",
            engine_command("whisper", settings.model),
            idle_s=settings.idle_minutes * 60,
            most_bytes=3_000_000_000,
        )
        self._settings = settings
        self._engine = LocalEngine("faster-whisper", self.process, clock, "listen")

    async def transcribe(self, clip: Clip) -> Transcript:
        """Transcribe a sound; see `TranscriptionPort`."""
        request = {
            "sound": base64.b64encode(clip.content).decode(),
            "language": self._settings.language,
            "max_seconds": self._settings.max_seconds,
        }
        limit_s = max(self._settings.timeout_s, clip.seconds * SLOWNESS)
        answer = await self._engine.ask(request, task="transcription", limit_s=limit_s)
        try:
            return Transcript(transcript_in(answer), Usage(calls=1, cost_usd=0.0, model="local"))
        except ValueError as error:
            raise self._engine.malformed_error(error) from error

    async def aclose(self) -> None:
        """End the process."""
        await self.process.aclose()


class OpusSpeech:
    """Implements `SpeechPort` by converting another's WAV or MP3, which stays on failure."""

    def __init__(self, inner: SpeechPort, *, idle_s: float) -> None:
        self._inner = inner
        self.process = ChildProcess("opus", engine_command("opus"), idle_s=idle_s, most_bytes=500_000_000)

    async def speak(self, text: str) -> SpeechResult:
        """Return the text as sound; see `SpeechPort`. It is paid for by now, so no failure here loses it."""
        until = anyio.current_time() + _CONVERSION_LIMIT_S
        spoken = await self._inner.speak(text)
        if spoken.media_type == "audio/ogg":
            return spoken
        try:
            content, sound = await self._convert(spoken.content, until - anyio.current_time())
        except (CallFailed, ValueError, KeyError, TypeError) as error:
            _log.warning("speech.not_converted", error=str(error), media_type=spoken.media_type)
            return spoken
        return replace(spoken, content=content, media_type="audio/ogg", sound=sound)

    async def _convert(self, content: bytes, limit_s: float) -> tuple[bytes, Sound]:
        """Return the same as Opus in Ogg. Raises CallFailed, and ValueError, KeyError or TypeError."""
        request, answer = {"sound": base64.b64encode(content).decode()}, None
        with anyio.move_on_after(limit_s):  # the start of the process, too
            answer = await self.process.ask_text(request, task="opus", limit_s=limit_s)
        if answer is None:
            raise ValueError(f"nothing came of it within {limit_s:.0f} s")
        opus = base64.b64decode(json.loads(answer)["sound"], validate=True)
        sound, original = opus_in(opus), await anyio.to_thread.run_sync(sound_file_of, content)
        if sound is None or sound.duration_s < original.seconds - _LESS_S:
            raise ValueError("nothing came of it, or a part would be missing")
        return opus, sound

    async def aclose(self) -> None:
        """Close both."""
        await self._inner.aclose()
        await self.process.aclose()
