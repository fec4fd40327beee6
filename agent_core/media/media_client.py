"""
Asks a provider to speak, to transcribe or to make pictures: a server of OpenAI's protocol over aiohttp alone,
any other through litellm in its process. Nothing is connected or started before the first request. Traps:
what a server sends as sound is told by its content, whatever format was asked for. ``verbose_json`` alone
says how sure the words are; newer models of OpenAI refuse it and tell the same by ``logprobs``. An address
instead of a picture is not followed, because the server would choose what this machine fetches.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

import aiohttp
import anyio

from agent_core.children.service import CallFailed
from agent_core.errors import Failure, ModelError
from agent_core.llm.litellm.litellm_client import LiteLLMProcess, access
from agent_core.llm.model_config import LLMSpec, ProviderSpec
from agent_core.llm.openai_connection import OpenAIConnection
from agent_core.llm.openai_format import token_count
from agent_core.llm.providers import Endpoint, endpoint_of, key_of_environment
from agent_core.media.media_config import (
    LOCAL,
    ImageSettings,
    SpeakSettings,
    TranscribeSettings,
    is_plain_image,
)
from agent_core.media.pictures import GeneratedPicture, pictures_in
from agent_core.media.speech import SpeechPort, SpeechResult, cost_of_chars, spoken_of
from agent_core.media.transcript import (
    Clip,
    StoredTranscript,
    Transcript,
    TranscriptionPort,
    cost_of,
    tidy,
    transcript_in,
)
from agent_core.ports import Clock

MAX_SPEECH_BYTES = 24 * 1024 * 1024
"""Ten minutes of WAV, an hour of Opus."""
_LEAST_BYTES, _BYTES_PER_SECOND, _MAX_BYTES = 256 * 1024, 2048, 8 * 1024 * 1024
"""
Of a transcript, by the length of the sound: a second of it has fewer than ten tokens of a hundred bytes.
Eight megabytes of empty brackets would be 180 in memory.
"""
_MAX_PICTURE_BYTES = 5_000_000
"""Through litellm's process."""
_WITHOUT_SEGMENTS = ("gpt-4o", "gpt-audio")
_Task = Literal["speech", "transcription", "image"]
_REQUESTS: Mapping[_Task, tuple[str, Mapping[str, str]]] = {
    "speech": ("/audio/speech", {"Content-Type": "application/json"}),
    "transcription": ("/audio/transcriptions", {"Accept": "application/json"}),
    "image": ("/images/generations", {"Content-Type": "application/json"}),
}
"""Path and headers of each request in OpenAI's protocol."""


class MediaClient:
    """One model for one task, at an OpenAI ``endpoint`` or (None) by litellm."""

    def __init__(
        self,
        task: _Task,
        settings: SpeakSettings | TranscribeSettings | ImageSettings,
        provider: ProviderSpec,
        *,
        endpoint: Endpoint | None,
        clock: Clock,
        litellm: LiteLLMProcess,
    ) -> None:
        self.model, self.timeout_s, self.endpoint = settings.model, settings.timeout_s, endpoint
        self._task: _Task = task
        self._litellm = litellm
        key = provider.api_key.get_secret_value()
        self._access = access(provider.api_base, key)
        if endpoint is not None:
            key = key or key_of_environment(self.model, endpoint)
        path, headers = _REQUESTS[task]
        address = (endpoint.api_base if endpoint else "").rstrip("/") + path
        self.server = OpenAIConnection(address, model=self.model, clock=clock, api_key=key, headers=headers)

    async def post(self, data: Mapping[str, Any] | aiohttp.FormData, *, most_bytes: int, what: str) -> bytes:
        """Return the whole answer of an OpenAI-compatible server. Raises `ModelError`."""
        assert self.endpoint is not None
        body: Any = data
        if isinstance(data, Mapping):
            text = json.dumps({"model": self.endpoint.model, **data}, ensure_ascii=False)
            body = text.encode("utf-8", "replace")
        return await self.server.read_whole(
            body, limit_s=self.timeout_s, most_bytes=most_bytes, too_large=what
        )

    async def ask_litellm(
        self, fields: Mapping[str, Any], *, most_chars: int, limit_s: float, cost: bool = False
    ) -> tuple[str, float | None]:
        """Return litellm's answer and its reported cost; the limit excludes the start. Raises ModelError."""
        request = {"model": self.model, "max_retries": 0, "timeout": self.timeout_s, **self._access, **fields}
        texts: list[str] = []
        usd: float | None = None
        failure: Failure | None = None
        try:
            await self._litellm.start()
            with anyio.move_on_after(limit_s) as limit:
                asked = self._litellm.ask(request, stream=False, cost=cost, task=self._task)
                async with aclosing(asked) as pieces:
                    async for piece in pieces:
                        texts.append(piece.text)
                        usd = piece.cost_usd if piece.cost_usd is not None else usd
                        if sum(map(len, texts)) > most_chars:
                            failure = Failure(text="an answer that is too large", unreadable="large")
                            break
            if limit.cancelled_caught:
                failure = Failure(text=f"no answer within {limit_s:g} s", unreadable="slow")
        except CallFailed as error:
            raise self.server.error(error.failure) from error
        except ValueError as error:
            failure = Failure(text=f"the request cannot be sent: {error}", status=413)
        if failure is not None:
            raise self.server.error(failure)
        return "".join(texts), usd

    async def aclose(self) -> None:
        """Close the connections; litellm's process belongs to the models."""
        await self.server.aclose()


class ProviderSpeech:
    """Implements `SpeechPort` for one model of a provider."""

    def __init__(self, client: MediaClient, settings: SpeakSettings, price: float | None) -> None:
        self.client = client
        self._settings = settings
        self._price = price

    async def speak(self, text: str) -> SpeechResult:
        """The text as sound; see `SpeechPort`."""
        client, settings = self.client, self._settings
        fields = {"input": text, "voice": settings.voice, "response_format": settings.format}
        if client.endpoint is None:
            told, _ = await client.ask_litellm(
                fields, most_chars=MAX_SPEECH_BYTES * 4 // 3 + 4, limit_s=client.timeout_s
            )
            with client.server.translate_errors():
                content = base64.b64decode(told, validate=True)
        else:
            content = await client.post(fields, most_bytes=MAX_SPEECH_BYTES, what="a sound without end")
        try:
            media_type, sound = spoken_of(content)
        except ValueError as error:
            raise client.server.error(Failure(text=f"no sound: {error}", unreadable="malformed")) from error
        return SpeechResult(content, media_type, sound, client.model, cost_of_chars(text, self._price))

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()


class ProviderTranscription:
    """Implements `TranscriptionPort` for one model of a provider. The file goes out as it came."""

    def __init__(self, client: MediaClient, settings: TranscribeSettings, price: float | None) -> None:
        self.client = client
        self._language = settings.language
        self._price = price

    async def transcribe(self, clip: Clip) -> Transcript:
        """Transcribe a sound; see `TranscriptionPort`."""
        client = self.client
        most = min(_MAX_BYTES, _LEAST_BYTES + math.ceil(clip.seconds) * _BYTES_PER_SECOND)
        answer: object = {}
        if client.endpoint is None:
            fields: dict[str, Any] = {
                "file": [clip.name, base64.b64encode(clip.content).decode(), clip.media_type]
            }
            if self._language:
                fields["language"] = self._language
            told, _ = await client.ask_litellm(fields, most_chars=most, limit_s=client.timeout_s)
            heard = StoredTranscript(tidy(told))
        else:
            what = f"an answer of more than {most} bytes to {clip.seconds:.0f} s of sound"
            content = await client.post(self._form(clip, client.endpoint.model), most_bytes=most, what=what)
            with client.server.translate_errors():
                answer = json.loads(content)
                heard = transcript_in(answer)
        usage = cost_of(answer, clip.seconds, model=client.model, usd_per_minute=self._price)
        return Transcript(heard, usage)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    def _form(self, clip: Clip, model: str) -> aiohttp.FormData:
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("model", model)
        if model.startswith(_WITHOUT_SEGMENTS):
            form.add_field("response_format", "json")
            form.add_field("include[]", "logprobs")
        else:
            form.add_field("response_format", "verbose_json")
        if self._language:
            form.add_field("language", self._language)
        form.add_field("file", io.BytesIO(clip.content), filename=clip.name, content_type=clip.media_type)
        return form


class ProviderPictures:
    """A model of a provider that makes pictures."""

    def __init__(self, client: MediaClient, settings: ImageSettings) -> None:
        self.client = client
        self._settings = settings
        self._max_bytes = int(settings.max_mb * 1_000_000)
        if client.endpoint is None:
            self._max_bytes = min(self._max_bytes, _MAX_PICTURE_BYTES)

    async def make(self, prompt: str, *, count: int, size: str) -> GeneratedPicture:
        """Make ``count`` pictures; ``size`` may be empty. Raises `ModelError` if none was made."""
        client = self.client
        fields = {**self._settings.extra, "prompt": prompt, "n": count, **({"size": size} if size else {})}
        if client.endpoint is None:
            return await self._make_one_by_one({**fields, "n": 1}, count)
        # Those of OpenAI that can do nothing else refuse to be told so.
        only_inside = client.endpoint.model.startswith("gpt-image")
        inside = {} if only_inside else {"response_format": "b64_json"}
        most = count * (self._max_bytes * 4 // 3 + (64 * 1024))
        content = await client.post({**inside, **fields}, most_bytes=most, what="pictures that are too large")
        return self._made_in(content, count, None)

    async def aclose(self) -> None:
        """Close the connections. A later `make` opens new ones."""
        await self.client.aclose()

    async def _make_one_by_one(self, fields: Mapping[str, Any], count: int) -> GeneratedPicture:
        """Request one picture each: an answer with several would be too large for litellm's process."""
        made = GeneratedPicture((), cost_usd=0.0, model=self.client.model)
        for _ in range(count):
            try:
                text, usd = await self.client.ask_litellm(
                    fields,
                    most_chars=self._max_bytes * 2,
                    limit_s=self.client.timeout_s / count,
                    cost=self._settings.usd_per_image is None,
                )
                one = self._made_in(text, 1, usd)
            except ModelError:
                if made.pictures:  # those are paid
                    return made
                raise
            unpriced = made.cost_usd is None or one.cost_usd is None
            made = replace(
                made,
                pictures=made.pictures + one.pictures,
                tokens=(made.tokens[0] + one.tokens[0], made.tokens[1] + one.tokens[1]),
                cost_usd=None if unpriced else (made.cost_usd or 0.0) + (one.cost_usd or 0.0),
            )
        return made

    def _made_in(self, content: bytes | str, most: int, usd: float | None) -> GeneratedPicture:
        """The pictures in an answer, which cost ``usd`` if no price is set. Raises `ModelError`."""
        with self.client.server.translate_errors():
            answer = json.loads(content)
            if not isinstance(answer, dict):
                raise ValueError("no object")  # noqa: TRY004 - about content, not about types
            pictures = pictures_in(answer, most=most, max_bytes=self._max_bytes)
        usage, price = answer.get("usage"), self._settings.usd_per_image
        told = usage if isinstance(usage, Mapping) else {}
        tokens = token_count(told.get("input_tokens")), token_count(told.get("output_tokens"))
        cost = usd if price is None else len(pictures) * price
        return GeneratedPicture(pictures, tokens, cost, self.client.model)


def build_speaker(
    settings: SpeakSettings, spec: LLMSpec, clock: Clock, *, litellm: LiteLLMProcess
) -> SpeechPort:
    """The speech client of these settings."""
    if settings.provider == LOCAL:
        from agent_core.media.local_engines import LocalSpeech  # noqa: PLC0415 - only if chosen

        return LocalSpeech(settings, clock)
    from agent_core.media.local_engines import OpusSpeech, can_make_opus  # noqa: PLC0415 - likewise

    client = _voice_client("speech", settings, spec, clock, litellm)
    voice = ProviderSpeech(client, settings, settings.price(spec.providers))
    return OpusSpeech(voice, idle_s=settings.idle_minutes * 60) if can_make_opus() else voice


def build_transcriber(
    settings: TranscribeSettings, spec: LLMSpec, clock: Clock, *, litellm: LiteLLMProcess
) -> TranscriptionPort:
    """The transcription client of these settings."""
    if settings.provider == LOCAL:
        from agent_core.media.local_engines import LocalTranscription  # noqa: PLC0415 - only if chosen

        return LocalTranscription(settings, clock)
    client = _voice_client("transcription", settings, spec, clock, litellm)
    return ProviderTranscription(client, settings, settings.price(spec.providers))


def build_picture_maker(
    settings: ImageSettings, providers: Mapping[str, ProviderSpec], clock: Clock, *, litellm: LiteLLMProcess
) -> ProviderPictures:
    """The image client of these settings, which have passed `check_image`."""
    provider = providers.get(settings.provider, ProviderSpec())
    plain = is_plain_image(settings, provider)
    endpoint = endpoint_of(settings.model, provider.api_base) if plain else None
    return ProviderPictures(
        MediaClient("image", settings, provider, endpoint=endpoint, clock=clock, litellm=litellm), settings
    )


def _voice_client(
    task: _Task,
    settings: SpeakSettings | TranscribeSettings,
    spec: LLMSpec,
    clock: Clock,
    litellm: LiteLLMProcess,
) -> MediaClient:
    provider = spec.providers.get(settings.provider, ProviderSpec())
    endpoint = None
    if settings.client != "litellm":
        endpoint = endpoint_of(settings.model, provider.api_base)
        if endpoint is None and settings.client == "openai":
            endpoint = Endpoint(provider.api_base, settings.model, public=False)
    return MediaClient(task, settings, provider, endpoint=endpoint, clock=clock, litellm=litellm)
