"""
Transcription by servers that have ``/audio/transcriptions`` of OpenAI's protocol, over aiohttp alone.

``verbose_json`` is asked for, because only it says how sure the words are. Newer models of OpenAI refuse it
and tell the same by ``logprobs``. The file goes out as it came: nothing is decoded or converted here.
"""

from __future__ import annotations

import io
import json
import math

import aiohttp

from agent_core.llm.openai_connection import OpenAIConnection
from agent_core.llm.providers import Endpoint
from agent_core.ports import Clock
from agent_core.voice.transcript import Clip, Transcript, cost_of, transcript_in

_LEAST_BYTES, _BYTES_PER_SECOND, _MOST_BYTES = 256 * 1024, 2048, 8 * 1024 * 1024
"""
Of an answer, by the length of the sound: a second of it has fewer than ten tokens of a hundred bytes. Eight
megabytes of empty brackets would be 180 in memory.
"""
_WITHOUT_SEGMENTS = ("gpt-4o", "gpt-audio")


class OpenAITranscription:
    """
    Implements `Transcribes` for one model at one server.

    Args:
        language: What is spoken; empty if nobody knows.
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
        self._server = OpenAIConnection(
            endpoint.api_base.rstrip("/") + "/audio/transcriptions",
            model=model,
            clock=clock,
            api_key=api_key,
            headers={"Accept": "application/json"},
        )
        self._language = language
        self._timeout_s = timeout_s
        self._price = usd_per_minute

    async def transcribe(self, clip: Clip) -> Transcript:
        """Transcribe a sound; see `Transcribes`."""
        most = min(_MOST_BYTES, _LEAST_BYTES + math.ceil(clip.seconds) * _BYTES_PER_SECOND)
        content = await self._server.whole(
            self._form(clip),
            limit_s=self._timeout_s,
            most_bytes=most,
            too_large=f"an answer of more than {most} bytes to {clip.seconds:.0f} s of sound",
        )
        with self._server.judged():
            answer = json.loads(content)
            heard = transcript_in(answer)
        usage = cost_of(answer, clip.seconds, model=self.model, usd_per_minute=self._price)
        return Transcript(heard, usage)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._server.aclose()

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
