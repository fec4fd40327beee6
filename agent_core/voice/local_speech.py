"""The daemon's side of local speech output: Piper in its own process, ended when idle."""

from __future__ import annotations

import base64
import binascii
import importlib.util
import json
import sys

import anyio
import structlog

from agent_core.child_process.process import CallFailed, ChildProcess
from agent_core.errors import Failure, ModelError
from agent_core.llm.errors import classify
from agent_core.ports import Clock
from agent_core.voice.config import SpeakSettings
from agent_core.voice.speech import Spoken, spoken_of

_MOST_BYTES = 1_500_000_000
_log = structlog.get_logger(__name__)


def missing_for_speech() -> str:
    """The command that installs what is missing; empty if nothing is."""
    there = all(importlib.util.find_spec(name) for name in ("piper", "soundfile"))
    return "" if there else "pip install '.[speak]'"


class LocalSpeech:
    """
    Implements `Speaks` with the voice in a file. It costs nothing.

    Args:
        command: What is started, for tests.
    """

    def __init__(
        self, settings: SpeakSettings, clock: Clock, *, command: tuple[str, ...] | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._command = command
        child = (sys.executable, "-m", "agent_core.voice.speech_child", settings.model)
        self.process = ChildProcess(
            "piper", command or child, idle_s=settings.idle_minutes * 60, most_bytes=_MOST_BYTES
        )

    async def speak(self, text: str) -> Spoken:
        """The text as sound; see `Speaks`. Starting the process does not count for the time limit."""
        if self._command is None and (install := missing_for_speech()):
            raise self._error(Failure(status=404, text=f"Piper is not installed: {install}"))
        began = anyio.current_time()
        try:
            answer = await self.process.whole({"text": text}, task="speech", limit_s=self._settings.timeout_s)
        except CallFailed as error:
            raise self._error(error.failure) from error
        if answer is None:
            text = f"not spoken within {self._settings.timeout_s:g} s"
            raise self._error(Failure(text=text, unreadable="slow"))
        try:
            told = json.loads(answer)
            content = base64.b64decode(told["sound"], validate=True)
            media_type, sound = spoken_of(content)
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise self._error(Failure(text=str(error), unreadable="malformed")) from error
        seconds = None if sound is None else round(sound.duration_s, 1)
        took_s = round(anyio.current_time() - began, 2)
        _log.info("piper.spoke", seconds=seconds, took_s=took_s, memory_mb=told.get("memory_mb"))
        return Spoken(content, media_type, sound, "local", 0.0, calls=0)

    async def aclose(self) -> None:
        """End the process."""
        await self.process.aclose()

    def _error(self, failure: Failure) -> ModelError:
        return classify(failure, model="piper", now=self._clock.now())
