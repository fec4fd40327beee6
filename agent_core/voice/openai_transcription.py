"""
Transcripts from servers that have ``/audio/transcriptions`` of OpenAI's protocol, over aiohttp alone.

``verbose_json`` is asked for, because only it says how sure the words are. Newer models of OpenAI refuse it
and tell the same by ``logprobs``. The file goes out as it came: nothing is decoded or converted here.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace

import aiohttp
import anyio

from agent_core.errors import ModelError
from agent_core.llm.errors import Failure, classify
from agent_core.llm.openai_client import describe, failure_in, is_loopback
from agent_core.llm.providers import Endpoint
from agent_core.ports import Clock
from agent_core.voice.transcript import Clip, Transcript, cost_of, transcript_in

__all__ = ["OpenAITranscription"]

_CONNECT_LIMIT_S = 10.0
_KEEP_ALIVE_S = 4.0
_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_WITHOUT_SEGMENTS = ("gpt-4o", "gpt-audio")


class OpenAITranscription:
    """
    Implements `Transcribes` for one model at one server.

    Args:
        model: The model's name, as it is reported.
        endpoint: Where it is, and its name there.
        language: What is spoken; empty if nobody knows.
        usd_per_minute: What a minute of sound costs, if that is known.
    """

    def __init__(
        self,
        model: str,
        *,
        endpoint: Endpoint,
        clock: Clock,
        api_key: str = "",
        language: str = "",
        timeout_s: float,
        usd_per_minute: float | None = None,
    ) -> None:
        self.model = model
        self._endpoint = endpoint
        self._url = endpoint.api_base.rstrip("/") + "/audio/transcriptions"
        self._clock = clock
        self._key = api_key
        self._language = language
        self._timeout_s = timeout_s
        self._price = usd_per_minute
        self._session: aiohttp.ClientSession | None = None

    async def transcribe(self, clip: Clip) -> Transcript:
        """Listen to a sound; see `Transcribes`."""
        content = b""
        try:
            with anyio.move_on_after(self._timeout_s) as scope:
                content = await self._ask(clip)
        except aiohttp.ClientResponseError as error:
            raise self._error(Failure(text=describe(error), unreadable="malformed")) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._error(Failure(text=describe(error), transport=True)) from error
        if scope.cancelled_caught:
            raise self._error(Failure(text=f"no answer within {self._timeout_s:g} s", unreadable="slow"))
        try:
            answer = json.loads(content)
            heard = transcript_in(answer)
        except (ValueError, RecursionError) as error:
            raise self._error(Failure(text=str(error), unreadable="malformed")) from error
        usage = cost_of(answer, clip.seconds, model=self.model, usd_per_minute=self._price)
        return Transcript(heard, usage)

    async def aclose(self) -> None:
        """Let go of the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, clip: Clip) -> bytes:
        async with self._opened().post(self._url, data=self._form(clip), allow_redirects=False) as response:
            content = bytearray()
            async for block in response.content.iter_any():
                content += block
                if len(content) > _MAX_ANSWER_BYTES:
                    response.close()
                    raise self._error(Failure(text="an answer of more than 8 MiB", unreadable="large"))
            if response.status != 200:
                told = _json_or_text(bytes(content))
                raise self._error(failure_in(told, status=response.status, headers=dict(response.headers)))
            return bytes(content)

    def _form(self, clip: Clip) -> aiohttp.FormData:
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("model", self._endpoint.model)
        if self._endpoint.model.startswith(_WITHOUT_SEGMENTS):
            form.add_field("response_format", "json")
            form.add_field("include[]", "logprobs")
        else:
            form.add_field("response_format", "verbose_json")
        if self._language:
            form.add_field("language", self._language)
        form.add_field("file", io.BytesIO(clip.content), filename=clip.name, content_type=clip.media_type)
        return form

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(keepalive_timeout=_KEEP_ALIVE_S),
                headers=headers,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT_S),
                trust_env=not is_loopback(self._url),
            )
        return self._session

    def _error(self, failure: Failure) -> ModelError:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())


def _json_or_text(content: bytes) -> object:
    text = content[:65_536].decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
