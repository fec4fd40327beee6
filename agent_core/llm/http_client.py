"""
Posts requests to a model server over aiohttp and reads its answers, streamed or whole, in whatever protocol.
It does what litellm does at a fortieth of the CPU time per answer and a third of the memory, so an
installation with such servers only never loads litellm. Traps: a server that ignores ``stream`` answers with
one JSON object, which is accepted; a stream that ends without a reason was cut, even where the connection was
closed politely. Those of the connection are in `openai_connection`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import aiohttp

from agent_core.errors import Failure
from agent_core.llm.model_client import ModelClient, Request
from agent_core.llm.openai_connection import OpenAIConnection, failure_in, is_failure
from agent_core.llm.openai_format import Piece
from agent_core.llm.streaming import EventTooLarge, LineDecoder, SseDecoder
from agent_core.ports import Clock

_MAX_ANSWER_BYTES = 8 * 1024 * 1024
_MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Several times the longest answer: each token comes in some hundred bytes of JSON."""
_DECODERS: Mapping[str, type[SseDecoder | LineDecoder]] = {
    "text/event-stream": SseDecoder,
    "application/x-ndjson": LineDecoder,
}

Reader = Callable[[Mapping[str, Any]], Iterator[Piece]]
"""Turns the objects of one answer into pieces. Raises `ValueError` for one that is none of the protocol."""


class HttpModelClient(ModelClient):
    """
    A client for one model at one HTTP server.

    Args:
        headers: Headers of every request; without a key in them ``api_key`` is the bearer token.
        api_key: Appears in no error.
        tells_cost: The server's report of the cost is believed.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str,
        clock: Clock,
        headers: Mapping[str, str],
        api_key: str = "",
        tells_cost: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(model, clock=clock, **common)
        self._tells_cost = tells_cost
        accept = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        self._server = OpenAIConnection(
            url, model=model, clock=clock, api_key=api_key, headers={**accept, **headers}
        )

    @abstractmethod
    def _body(self, asked: Request) -> Mapping[str, Any]:
        """The request in the server's protocol."""

    @abstractmethod
    def _reader(self) -> Reader:
        """The reader of one answer."""

    async def aclose(self) -> None:
        """Close the connections. A later ``chat`` opens new ones."""
        await self._server.aclose()

    async def _pieces(self, asked: Request) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of the server's answer; raises only `ModelError`."""
        read = self._reader()
        with self._server.translate_errors():
            data = json.dumps(self._body(asked), ensure_ascii=False, separators=(",", ":")).encode()
            async with self._server.post(data) as response:
                await self._server.check(response)
                decoder = _DECODERS.get(response.content_type)
                answer = self._stream(response, read, decoder()) if decoder else self._whole(response, read)
                async with aclosing(answer) as pieces:
                    async for piece in pieces:
                        yield self._priced(piece)

    async def _stream(
        self, response: aiohttp.ClientResponse, read: Reader, decoder: SseDecoder | LineDecoder
    ) -> AsyncGenerator[Piece, None]:
        ended = False
        total = since_event = 0
        async for data in response.content.iter_any():
            total += len(data)
            since_event += len(data)
            for event in decoder.feed(data):
                if event.strip() == "[DONE]":
                    self._check_ended(ended=ended)
                    return
                for piece in read(self._object(event)):
                    ended = ended or piece.finish is not None
                    yield piece
                since_event = 0
            if since_event > _MAX_ANSWER_BYTES or total > _MAX_STREAM_BYTES:
                raise EventTooLarge("a stream that does not end")
            if since_event:
                yield Piece(noise="part" if decoder.in_part else "keep-alive")
        for event in decoder.flush():
            if event.strip() == "[DONE]":
                break
            for piece in read(self._object(event)):
                ended = ended or piece.finish is not None
                yield piece
        self._check_ended(ended=ended)

    def _check_ended(self, *, ended: bool) -> None:
        """Raise `ModelError` for a stream that stopped before the server said why the answer ends."""
        if not ended:
            raise self._server.error(
                Failure(text="the stream ended in the middle of the answer", transport=True)
            )

    async def _whole(self, response: aiohttp.ClientResponse, read: Reader) -> AsyncGenerator[Piece, None]:
        data = bytearray()
        async for block in response.content.iter_any():
            data += block
            if len(data) > _MAX_ANSWER_BYTES:
                raise EventTooLarge("an answer of more than 8 MiB")
            yield Piece(noise="part" if data.strip() else "keep-alive")
        pieces = list(read(self._object(data.decode())))
        if not any(piece.finish for piece in pieces):
            pieces.append(Piece(finish="stop"))  # a whole object was not cut
        for piece in pieces:
            yield piece

    def _object(self, text: str) -> Mapping[str, Any]:
        value = json.loads(text, parse_int=_number)
        if not isinstance(value, dict):
            raise ValueError("an answer that is not an object")  # noqa: TRY004 - about content, not about types
        if is_failure(value):
            raise self._server.error(failure_in(value, status=None))
        return value

    def _priced(self, piece: Piece) -> Piece:
        if piece.tokens is None:
            return piece
        if self._price is not None:
            return replace(piece, cost_usd=self._price.cost_of(piece.tokens))
        return piece if self._tells_cost else replace(piece, cost_usd=None)


def _number(digits: str) -> int:
    """A number of the answer: none that we look at is long, and Python refuses thousands of digits."""
    return int(digits) if len(digits) <= 40 else 0
