"""
Speech output by servers that have ``/audio/speech`` of OpenAI's protocol, over aiohttp alone.

Asked for is Opus in Ogg, which is what voice messages are made of, so nothing is converted here. What a
server sends instead is told by its content: a file that can be played goes out as that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_core.errors import Failure
from agent_core.llm.openai_connection import OpenAIConnection
from agent_core.llm.providers import Endpoint
from agent_core.ports import Clock
from agent_core.voice.speech import Spoken, cost_of_chars, spoken_of

MAX_SPEECH_BYTES = 24 * 1024 * 1024
"""Ten minutes of WAV, an hour of Opus."""


class OpenAISpeech:
    """
    Implements `Speaks` for one model at one server.

    Args:
        body: What a request has besides the text and the model: voice, format.
    """

    def __init__(
        self,
        model: str,
        *,
        endpoint: Endpoint,
        clock: Clock,
        api_key: str = "",
        body: Mapping[str, Any],
        timeout_s: float,
        usd_per_million_chars: float | None = None,
    ) -> None:
        self.model = model
        self._server = OpenAIConnection(
            endpoint.api_base.rstrip("/") + "/audio/speech",
            model=model,
            clock=clock,
            api_key=api_key,
            headers={"Content-Type": "application/json"},
        )
        self._body = {"model": endpoint.model, **body}
        self._timeout_s = timeout_s
        self._price = usd_per_million_chars

    async def speak(self, text: str) -> Spoken:
        """The text as sound; see `Speaks`."""
        data = json.dumps({**self._body, "input": text}, ensure_ascii=False).encode("utf-8", "replace")
        content = await self._server.whole(
            data, limit_s=self._timeout_s, most_bytes=MAX_SPEECH_BYTES, too_large="a sound without end"
        )
        try:
            media_type, sound = spoken_of(content)
        except ValueError as error:
            raise self._server.error(Failure(text=f"no sound: {error}", unreadable="malformed")) from error
        return Spoken(content, media_type, sound, self.model, cost_of_chars(text, self._price))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._server.aclose()
