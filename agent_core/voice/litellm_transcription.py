"""Transcription by every provider that litellm knows; litellm runs in its own process, as for models."""

from __future__ import annotations

import base64
from dataclasses import replace

from agent_core.child_process.process import CallFailed
from agent_core.errors import Failure, ModelError
from agent_core.llm.config import ProviderSpec
from agent_core.llm.errors import classify
from agent_core.llm.litellm.process import LiteLLMProcess, access
from agent_core.ports import Clock
from agent_core.voice.config import TranscribeSettings
from agent_core.voice.transcript import Clip, Heard, Transcript, cost_of, tidy


class LiteLLMTranscription:
    """Implements `Transcribes` for one model of any provider that litellm knows."""

    def __init__(
        self,
        settings: TranscribeSettings,
        provider: ProviderSpec,
        clock: Clock,
        *,
        process: LiteLLMProcess,
        usd_per_minute: float | None = None,
    ) -> None:
        self.model = settings.model
        self._settings = settings
        self._price = usd_per_minute
        self._api_base = provider.api_base
        self._key = provider.api_key.get_secret_value()
        self._clock = clock
        self._process = process

    async def transcribe(self, clip: Clip) -> Transcript:
        """Transcribe a sound; see `Transcribes`. Starting the process does not count for the time limit."""
        limit_s = self._settings.timeout_s
        request = {
            "model": self.model,
            "file": [clip.name, base64.b64encode(clip.content).decode(), clip.media_type],
            "max_retries": 0,
            "timeout": limit_s,
            **access(self._api_base, self._key),
        }
        if self._settings.language:
            request["language"] = self._settings.language
        try:
            told = await self._process.whole(request, task="transcription", limit_s=limit_s)
        except CallFailed as error:
            raise self._error(error.failure) from error
        except ValueError as error:
            raise self._error(Failure(text=f"the request cannot be sent: {error}", status=413)) from error
        if told is None:
            raise self._error(Failure(text=f"no answer within {limit_s:g} s", unreadable="slow"))
        usage = cost_of({}, clip.seconds, model=self.model, usd_per_minute=self._price)
        return Transcript(Heard(tidy(told)), usage)

    async def aclose(self) -> None:
        """Does nothing: the process belongs to the models."""

    def _error(self, failure: Failure) -> ModelError:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())
