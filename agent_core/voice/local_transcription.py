"""The daemon's side of local transcription: faster-whisper in its own process, ended when idle."""

from __future__ import annotations

import base64
import importlib.util
import json
import sys

import structlog

from agent_core.child_process.process import CallFailed, ChildProcess
from agent_core.errors import Failure, ModelError
from agent_core.llm.errors import classify
from agent_core.models import Usage
from agent_core.ports import Clock
from agent_core.voice.config import SLOWNESS, TranscribeSettings
from agent_core.voice.transcript import Clip, Transcript, transcript_in

_log = structlog.get_logger(__name__)
_MOST_BYTES = 3_000_000_000


def missing() -> str:
    """The command that installs what is missing; empty if nothing is."""
    return "" if importlib.util.find_spec("faster_whisper") else "pip install '.[listen]'"


class LocalTranscription:
    """
    Implements `Transcribes` with the weights in a folder. It costs nothing.

    Args:
        command: What is started, for tests.
    """

    def __init__(
        self, settings: TranscribeSettings, clock: Clock, *, command: tuple[str, ...] | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        child = (sys.executable, "-m", "agent_core.voice.transcription_child", settings.model)
        self.process = ChildProcess(
            "whisper", command or child, idle_s=settings.idle_minutes * 60, most_bytes=_MOST_BYTES
        )

    async def transcribe(self, clip: Clip) -> Transcript:
        """Transcribe a sound; see `Transcribes`. Starting the process does not count for the time limit."""
        if install := missing():
            raise self._error(Failure(status=404, text=f"faster-whisper is not installed: {install}"))
        limit_s = max(self._settings.timeout_s, clip.seconds * SLOWNESS)
        request = {
            "sound": base64.b64encode(clip.content).decode(),
            "language": self._settings.language,
            "max_seconds": self._settings.max_seconds,
        }
        try:
            told = await self.process.whole(request, task="transcription", limit_s=limit_s)
        except CallFailed as error:
            raise self._error(error.failure) from error
        except ValueError as error:
            raise self._error(
                Failure(text=f"the sound cannot be handed over: {error}", status=413)
            ) from error
        if told is None:
            raise self._error(Failure(text=f"no answer within {limit_s:.0f} s", unreadable="slow"))
        try:
            answer = json.loads(told)
            heard = transcript_in(answer)
        except ValueError as error:
            raise self._error(Failure(text=str(error), unreadable="malformed")) from error
        _log.info("whisper.listened", seconds=round(clip.seconds, 1), memory_mb=answer.get("memory_mb"))
        return Transcript(heard, Usage(calls=1, cost_usd=0.0, model="local"))

    async def aclose(self) -> None:
        """End the process."""
        await self.process.aclose()

    def _error(self, failure: Failure) -> ModelError:
        return classify(failure, model="faster-whisper", now=self._clock.now())
