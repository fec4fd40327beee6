"""
Speech from servers that have ``/audio/speech`` of OpenAI's protocol, over aiohttp alone.

Asked for is Opus in Ogg, which is what voice messages are made of, so nothing is converted here. What a
server sends instead is told by its content: a file that can be played goes out as that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import anyio

from agent_core.errors import ModelError
from agent_core.llm.errors import Failure, classify
from agent_core.llm.openai_client import describe, failure_in, is_loopback
from agent_core.llm.providers import Endpoint
from agent_core.ports import Clock
from agent_core.voice.speech import Spoken, cost_of_chars, spoken_of

__all__ = ["MAX_SPEECH_BYTES", "OpenAISpeech"]

MAX_SPEECH_BYTES = 24 * 1024 * 1024
"""Ten minutes of WAV, an hour of Opus."""
_CONNECT_LIMIT_S = 10.0
_MAX_ERROR_BYTES = 64 * 1024


class OpenAISpeech:
    """
    Implements `Speaks` for one model at one server.

    Args:
        model: The model's name, as it is reported.
        endpoint: Where it is, and its name there.
        body: What a request has besides the text and the model: voice, format.
        usd_per_million_chars: What characters cost, if that is known.
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
        self._url = endpoint.api_base.rstrip("/") + "/audio/speech"
        self._clock = clock
        self._key = api_key
        self._body = {"model": endpoint.model, **body}
        self._timeout_s = timeout_s
        self._price = usd_per_million_chars
        self._session: aiohttp.ClientSession | None = None

    async def speak(self, text: str) -> Spoken:
        """The text as sound; see `Speaks`."""
        try:
            with anyio.fail_after(self._timeout_s):
                content = await self._ask(text)
        except aiohttp.ClientResponseError as error:
            raise self._error(Failure(text=describe(error), unreadable="malformed")) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._error(Failure(text=describe(error), transport=True)) from error
        try:
            media_type, sound = spoken_of(content)
        except ValueError as error:
            raise self._error(Failure(text=f"no sound: {error}", unreadable="malformed")) from error
        return Spoken(content, media_type, sound, self.model, cost_of_chars(text, self._price))

    async def aclose(self) -> None:
        """Let go of the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, text: str) -> bytes:
        data = json.dumps({**self._body, "input": text}, ensure_ascii=False).encode("utf-8", "replace")
        async with self._opened().post(self._url, data=data, allow_redirects=False) as response:
            content = bytearray()
            most = MAX_SPEECH_BYTES if response.status == 200 else _MAX_ERROR_BYTES
            async for block in response.content.iter_any():
                content += block
                if len(content) > most:
                    response.close()
                    break
            if response.status != 200:
                told = _json_or_text(bytes(content[:_MAX_ERROR_BYTES]))
                raise self._error(failure_in(told, status=response.status, headers=dict(response.headers)))
            if len(content) > MAX_SPEECH_BYTES:
                raise self._error(Failure(text="a sound without end", unreadable="large"))
            return bytes(content)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT_S),
                trust_env=not is_loopback(self._url),
            )
        return self._session

    def _error(self, failure: Failure) -> ModelError:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())


def _json_or_text(content: bytes) -> object:
    text = content.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
