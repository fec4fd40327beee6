"""Speech output by every provider that litellm knows; litellm runs in its own process, as for models."""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Any

from agent_core.child_process.process import CallFailed
from agent_core.errors import Failure, ModelError
from agent_core.llm.config import ProviderSpec
from agent_core.llm.errors import classify
from agent_core.llm.litellm.process import LiteLLMProcess, access
from agent_core.ports import Clock
from agent_core.voice.config import SpeakSettings
from agent_core.voice.speech import Spoken, cost_of_chars, spoken_of


class LiteLLMSpeech:
    """Implements `Speaks` for one model of any provider that litellm knows."""

    def __init__(
        self,
        settings: SpeakSettings,
        provider: ProviderSpec,
        clock: Clock,
        *,
        process: LiteLLMProcess,
        usd_per_million_chars: float | None,
    ) -> None:
        self.model = settings.model
        self._settings = settings
        self._price = usd_per_million_chars
        self._api_base = provider.api_base
        self._key = provider.api_key.get_secret_value()
        self._clock = clock
        self._process = process

    async def speak(self, text: str) -> Spoken:
        """The text as sound; see `Speaks`. Starting the process does not count for the time limit."""
        limit_s = self._settings.timeout_s
        try:
            told = await self._process.whole(self._request(text), task="speech", limit_s=limit_s)
        except CallFailed as error:
            raise self._error(error.failure) from error
        if told is None:
            raise self._error(Failure(text=f"not spoken within {limit_s:g} s", unreadable="slow"))
        try:
            content = base64.b64decode(told, validate=True)
            media_type, sound = spoken_of(content)
        except (ValueError, binascii.Error) as error:
            raise self._error(Failure(text=f"no sound: {error}", unreadable="malformed")) from error
        return Spoken(content, media_type, sound, self.model, cost_of_chars(text, self._price))

    async def aclose(self) -> None:
        """Does nothing: the process belongs to the models."""

    def _request(self, text: str) -> dict[str, Any]:
        settings = self._settings
        return {
            "model": self.model,
            "input": text,
            "voice": settings.voice,
            "response_format": settings.format,
            "max_retries": 0,
            "timeout": settings.timeout_s,
            **access(self._api_base, self._key),
        }

    def _error(self, failure: Failure) -> ModelError:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())
