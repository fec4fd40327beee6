"""
A plain client for servers that speak the OpenAI chat format: most providers, and servers of one's own.

It does the same as the litellm client over aiohttp alone, at a fortieth of the CPU time per answer and a
third of the memory, so whoever uses such a server never loads litellm.

Traps: a server that ignores ``stream`` answers with one JSON object, which is accepted; a stream that ends
without ``[DONE]`` or a finish reason was cut, even where the connection was closed politely; an idle
connection is let go after four seconds, before servers drop theirs (five is usual) and a request is lost on
it. What cannot be read (too large, packed in spite of ``identity``, no JSON, no HTTP, a redirect) is not
confused with a server that is away: see `ModelUnreadable`.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio

from agent_core.errors import ModelError
from agent_core.llm.errors import Failure, classify
from agent_core.llm.images import pictures_of
from agent_core.llm.openai_format import Piece, bare_model_name, parse_piece, request_body
from agent_core.llm.prices import Price
from agent_core.llm.providers import Endpoint, adapted, takes_cache_control
from agent_core.llm.reasoning import Habit
from agent_core.llm.sse import SseDecoder, TooLarge
from agent_core.llm.streaming import AnswerLimits, answer
from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.ports import AttachmentPort, Clock

__all__ = ["OpenAIClient", "describe", "failure_in", "is_loopback"]

_CONNECT_LIMIT_S = 10.0
_KEEP_ALIVE_S = 4.0
_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Several times the longest answer: each token comes in some hundred bytes of JSON."""
_MAX_ERROR_BYTES = 64 * 1024
_ERROR_LIMIT_S = 5.0
_LONGEST_NUMBER = 40


class OpenAIClient:
    """
    An `LLMPort` for one model at one OpenAI-compatible server.

    Args:
        model: The model's name, as it is reported; sent is the endpoint's, or what follows ``openai/``.
        api_base: The server's address up to and with ``/v1``.
        api_key: Sent as bearer token if it is not empty.
        extra: Further fields of the request, such as ``temperature``; they win.
        limits: How long an answer may take.
        price: What tokens cost, if it is known.
        pictures: Where pictures are read, for a model that looks at them.
        endpoint: What its provider wants otherwise than others.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str,
        clock: Clock,
        api_key: str = "",
        max_tokens: int | None = None,
        extra: Mapping[str, Any] | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008 - a frozen value
        price: Price | None = None,
        pictures: AttachmentPort | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        self.model = model
        self._endpoint = endpoint or Endpoint(api_base, bare_model_name(model), public=False)
        base = api_base.rstrip("/")
        self._url = base if base.endswith("/chat/completions") else base + "/chat/completions"
        self._clock = clock
        self._key = api_key
        self._max_tokens = max_tokens
        self._extra = dict(extra or {})
        self._limits = limits
        self._price = price
        self._pictures = pictures
        self._habit = Habit()
        self._session: aiohttp.ClientSession | None = None

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        """Ask for one answer; see `LLMPort`."""
        body = request_body(
            self._endpoint.model,
            messages,
            tools,
            stream=stream,
            max_tokens=self._max_tokens,
            extra=self._extra,
            pictures=await pictures_of(messages, self._pictures),
            signed=self._endpoint.signs_calls,
            marked=self._endpoint.tells_cost and takes_cache_control(self.model),
        )
        body = adapted(body, self._endpoint)
        return answer(
            self._pieces(body), limits=self._limits, model=self.model, stream=stream, habit=self._habit
        )

    async def aclose(self) -> None:
        """Let go of the connections. A later ``chat`` opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            headers = {
                "Content-Type": "application/json",
                "Accept": "text/event-stream, application/json",
                # Packed answers are not read: a few kilobytes of them can be gigabytes of text.
                "Accept-Encoding": "identity",
            }
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

    async def _pieces(self, body: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """What the server sends; every exception is one of ours."""
        try:
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
            async with self._open_session().post(self._url, data=data, allow_redirects=False) as response:
                if response.status != 200:
                    refusal = await self._refusal(response)
                    response.close()  # not asked again on a connection whose server errs
                    raise refusal
                packing = response.headers.get("Content-Encoding", "identity").strip().lower()
                if packing not in ("", "identity"):
                    raise self._error(Failure(text=f"packed as {packing}", unreadable="packed"))
                reader = self._stream if response.content_type == "text/event-stream" else self._whole
                async with aclosing(reader(response)) as pieces:
                    async for piece in pieces:
                        yield self._priced(piece)
        except aiohttp.ClientResponseError as error:
            raise self._error(Failure(text=describe(error), unreadable="malformed")) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._error(Failure(text=describe(error), transport=True)) from error
        except TooLarge as error:
            raise self._error(Failure(text=str(error), unreadable="large")) from error
        except (ValueError, RecursionError) as error:
            raise self._error(Failure(text=str(error), unreadable="malformed")) from error

    async def _stream(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Piece, None]:
        decoder = SseDecoder()
        ended = False
        total = since_event = 0
        async for data in response.content.iter_any():
            total += len(data)
            since_event += len(data)
            for event in decoder.feed(data):
                if event.strip() == "[DONE]":
                    return
                piece = self._parse(event)
                ended = ended or piece.finish is not None
                since_event = 0
                yield piece
            if since_event > _MAX_ANSWER_BYTES or total > _MAX_STREAM_BYTES:
                raise TooLarge("a stream that does not end")
            if since_event:
                yield Piece(noise="part" if decoder.in_part else "keep-alive")
        for event in decoder.rest():
            if event.strip() == "[DONE]":
                return
            piece = self._parse(event)
            ended = ended or piece.finish is not None
            yield piece
        if not ended:
            raise self._error(Failure(text="the stream ended in the middle of the answer", transport=True))

    async def _whole(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Piece, None]:
        data = bytearray()
        async for block in response.content.iter_any():
            data += block
            if len(data) > _MAX_ANSWER_BYTES:
                raise TooLarge("an answer of more than 8 MiB")
            yield Piece(noise="part" if data.strip() else "keep-alive")
        yield self._parse(data.decode())

    def _parse(self, text: str) -> Piece:
        value = json.loads(text, parse_int=_number)
        if not isinstance(value, dict):
            raise ValueError("an answer that is no object")  # noqa: TRY004 - about content, not about types
        if value.get("error"):
            raise self._error(failure_in(value, status=None))
        return parse_piece(value)

    async def _refusal(self, response: aiohttp.ClientResponse) -> ModelError:
        data = bytearray()
        with anyio.move_on_after(_ERROR_LIMIT_S):
            while len(data) < _MAX_ERROR_BYTES and (block := await response.content.read(_MAX_ERROR_BYTES)):
                data += block
        raw = data[:_MAX_ERROR_BYTES].decode(errors="replace")
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = raw
        headers = dict(response.headers)
        failure = failure_in(body, status=response.status, headers=headers)
        return self._error(failure)

    def _error(self, failure: Failure) -> ModelError:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())

    def _priced(self, piece: Piece) -> Piece:
        if piece.tokens is None:
            return piece
        if self._price is not None:
            return replace(piece, cost_usd=self._price.of(piece.tokens))
        return piece if self._endpoint.tells_cost else replace(piece, cost_usd=None)


def failure_in(body: object, *, status: int | None, headers: Mapping[str, str] | None = None) -> Failure:
    """Read the error objects in use: ``{"error": {...}}``, ``{"error": "text"}``, or anything else."""
    error = body.get("error", body) if isinstance(body, dict) else body
    text, code = str(error), ""
    if isinstance(error, dict):
        text = str(error.get("message") or error.get("detail") or error)
        code = " ".join(str(error[key]) for key in ("type", "code") if error.get(key))
        given = error.get("code")
        if status is None and isinstance(given, int) and 400 <= given < 600:
            status = given
    return Failure(status=status, text=text, code=code, headers=headers or {})


def _number(digits: str) -> int:
    """A number of the answer: none that we look at is long, and Python refuses thousands of digits."""
    return int(digits) if len(digits) <= _LONGEST_NUMBER else 0


def describe(error: Exception) -> str:
    """An error of a library in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def is_loopback(url: str) -> bool:
    """Whether an address is on this machine, so that no proxy is asked."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
