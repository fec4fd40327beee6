"""
``/v1/``: chat completions, responses and models, as OpenAI's clients call them. Nothing is read of a request
without a token. Bodies, their time and open requests are bounded; an answer that takes long keeps its
connection alive by comments. Errors have OpenAI's shape.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import structlog
from aiohttp import web
from anyio import to_thread

from channels.api.channel import ApiChannel, KeyReused, OpenRequest, TooManyRequests
from channels.api.request import BadRequest, RequestWords, estimate_tokens, read_body
from channels.api.token_store import ApiToken
from channels.attachments import AttachmentRefused, AttachmentsUnavailable
from channels.base import ChannelUnavailable

_BODY_BYTES = 8 * 1_048_576
_BODY_LIMIT_S = 30.0
_ANSWER_LIMIT_S = 3600.0
_ALIVE_EVERY_S = 10.0
_RETRY_AFTER_S = 10
_MAX_KEY = 255
_TOO_LONG = "there is no answer yet; send the request again with the same Idempotency-Key"
_log = structlog.get_logger(__name__)


class ApiServer:
    """The routes of one endpoint."""

    def __init__(self, channel: ApiChannel) -> None:
        self._channel = channel

    def routes(self) -> list[web.AbstractRouteDef]:
        """Return everything below ``/v1/``."""
        return [
            web.post("/v1/chat/completions", self._guarded(self._chat)),
            web.post("/v1/responses", self._guarded(self._responses)),
            web.get("/v1/models", self._guarded(self._models)),
            web.get("/v1/models/{name}", self._guarded(self._model)),
            web.route("*", "/v1/{rest:.*}", self._guarded(self._unknown)),
        ]

    def _guarded(
        self, handler: Callable[[web.Request, ApiToken], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Let nobody in without a token, and say what goes wrong in OpenAI's shape."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request, await self._token_of(request))
            except BadRequest as error:
                return _failed(error.status, str(error), error.code, param=error.param)
            except KeyReused as error:
                return _failed(422, str(error), "idempotency_key_reused")
            except TooManyRequests as error:
                return _failed(429, str(error), "rate_limit_exceeded")
            except AttachmentRefused as error:
                return _failed(413, str(error), "request_too_large")
            except ConnectionError:
                raise  # the client has gone, and nobody reads an answer
            except (ChannelUnavailable, AttachmentsUnavailable, OSError) as error:
                return _failed(503, str(error) or _TOO_LONG, "unavailable")

        return self._shared(handle)

    def _shared(
        self, handle: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Let the pages in browsers that the settings name read what is answered."""

        async def answer(request: web.Request) -> web.StreamResponse:
            shared = self._shared_with(request)
            if shared and request.method == "OPTIONS":  # a browser asks what a page may send
                return web.Response(status=204, headers=shared)
            response = await handle(request)
            if not response.prepared:
                response.headers.update(shared)
            return response

        return answer

    def _shared_with(self, request: web.Request) -> dict[str, str]:
        """The headers that let a page in a browser read the answer; none for pages that are not named."""
        origin = request.headers.get("Origin", "")
        if origin not in self._channel.origins:
            return {}
        wanted = request.headers.get("Access-Control-Request-Headers", "")[:1000]
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": wanted or "Authorization, Content-Type, Idempotency-Key",
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        }

    async def _token_of(self, request: web.Request) -> ApiToken:
        scheme, _, text = request.headers.get("Authorization", "").strip().partition(" ")
        token = None
        if scheme.lower() == "bearer" and text.strip():
            token = await to_thread.run_sync(self._channel.tokens.find, text.strip())
        if token is None:
            _log.warning("api.refused", channel=self._channel.name)
            text = "No valid token was given. Make one with: squidbot tokens add NAME"
            raise BadRequest(text, status=401, code="invalid_api_key")
        if not self._channel.services.may_talk(token.person):
            text = f"The person of the token {token.name!r} may not talk to squidbot any more."
            raise BadRequest(text, status=403, code="permission_denied")
        return token

    async def _chat(self, request: web.Request, token: ApiToken) -> web.StreamResponse:
        return await self._answered(request, token, "messages", ChatReply)

    async def _responses(self, request: web.Request, token: ApiToken) -> web.StreamResponse:
        return await self._answered(request, token, "input", ResponsesReply)

    async def _models(self, request: web.Request, token: ApiToken) -> web.StreamResponse:
        return _json({"object": "list", "data": [self._described()]})

    async def _model(self, request: web.Request, token: ApiToken) -> web.StreamResponse:
        if request.match_info["name"] != self._channel.model:
            text = f"The model does not exist; here it is called '{self._channel.model}'."
            raise BadRequest(text, "model", status=404, code="model_not_found")
        return _json(self._described())

    async def _unknown(self, request: web.Request, token: ApiToken) -> web.StreamResponse:
        path = f"{request.method} {request.path[:100]}"
        raise BadRequest(f"There is no {path} here.", status=404, code="unknown_url")

    def _described(self) -> Mapping[str, Any]:
        return {"id": self._channel.model, "object": "model", "created": 0, "owned_by": "squidbot"}

    async def _answered(
        self, request: web.Request, token: ApiToken, key: str, shape: type[ReplyShape]
    ) -> web.StreamResponse:
        body = await _body_of(request)
        read = partial(
            read_body,
            body,
            key=key,
            model=self._channel.model,
            person=token.person,
            ours=self._channel.account,
            conversation=request.headers.get("X-OpenWebUI-Chat-Id", ""),
        )
        # Megabytes of images would hold up everybody; a thread costs more than a few lines do.
        words = read() if len(body) < 65_536 else await to_thread.run_sync(read)
        async with self._channel.ask(token, _key_of(request), words) as asked:
            name = hashlib.sha256(asked.native_id.encode()).hexdigest()[:29]
            reply = shape(name, self._channel.model, self._channel.services.clock.now(), words)
            if words.stream:
                return await self._streamed(request, asked, reply)
            with anyio.fail_after(_ANSWER_LIMIT_S):
                async for _ in self._texts(request, asked):
                    pass
            return _json(reply.complete(asked.text))

    async def _streamed(
        self, request: web.Request, asked: OpenRequest, reply: ReplyShape
    ) -> web.StreamResponse:
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
            **self._shared_with(request),
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(_events(reply.beginning()))
        shown, sent = "", self._channel.services.clock.monotonic()
        try:
            with anyio.fail_after(_ANSWER_LIMIT_S):
                async for text in self._texts(request, asked):
                    more = addition(shown, text)
                    now = self._channel.services.clock.monotonic()
                    if more:
                        await response.write(_events(reply.delta(more)))
                    elif now - sent >= _ALIVE_EVERY_S:
                        await response.write(b": still working\n\n")
                    else:
                        continue
                    shown, sent = text or shown, now
            await response.write(_events(reply.end(asked.text)))
        except (ChannelUnavailable, TimeoutError) as error:
            await response.write(_events([_error(str(error) or _TOO_LONG, "unavailable", 503)]))
        await response.write_eof()
        return response

    async def _texts(self, request: web.Request, asked: OpenRequest) -> AsyncIterator[str]:
        """The answer so far, as long as the client is there; what it leaves goes on without it."""
        async with aclosing(self._channel.watch(asked)) as texts:
            async for text in texts:
                if request.transport is None or request.transport.is_closing():
                    raise ConnectionResetError("the client has gone")
                yield text


def addition(shown: str, text: str) -> str:
    """Return what turns the shown text into this one; a text that does not continue it is a new paragraph."""
    if text.startswith(shown):
        return text[len(shown) :]
    return "" if shown.startswith(text) else f"\n\n{text}"


def _key_of(request: web.Request) -> str:
    """A name for the request, of its Idempotency-Key; empty: it has none."""
    given = request.headers.get("Idempotency-Key", "")
    if len(given) > _MAX_KEY:
        raise BadRequest(f"The Idempotency-Key must have at most {_MAX_KEY} characters.")
    digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).hexdigest()
    return digest[:32] if given else ""


async def _body_of(request: web.Request) -> bytes:
    """Return the body. Raises BadRequest if it is too long or too slow."""
    body = bytearray()
    try:
        with anyio.fail_after(_BODY_LIMIT_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > _BODY_BYTES:
                    text = f"The body is longer than {_BODY_BYTES} bytes."
                    raise BadRequest(text, status=413, code="request_too_large")
    except TimeoutError:
        raise BadRequest("The body did not come in time.", status=408) from None
    except web.RequestPayloadError:
        raise BadRequest("The body cannot be unpacked.") from None
    return bytes(body)


def _events(values: Iterable[Mapping[str, Any] | str]) -> bytes:
    """Return server-sent events: each a text as it is, or JSON; one with a ``type`` is named by it."""
    lines = []
    for value in values:
        if isinstance(value, str):
            lines.append(f"data: {value}\n\n")
            continue
        name = f"event: {value['type']}\n" if "type" in value else ""
        lines.append(f"{name}data: {json.dumps(value, ensure_ascii=False)}\n\n")
    return "".join(lines).encode()


def _json(value: Mapping[str, Any], status: int = 200) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.json_response(value, status=status, headers=headers)


def _error(text: str, code: str | None, status: int, param: str | None = None) -> dict[str, Any]:
    kind = (
        "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    )
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def _failed(status: int, text: str, code: str | None, *, param: str | None = None) -> web.Response:
    answer = _json(_error(text, code, status, param), status)
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        answer.headers["Retry-After"] = str(_RETRY_AFTER_S)
    return answer


Event = Mapping[str, Any] | str
"""One server-sent event."""


class ReplyShape(ABC):
    """An answer to ``words`` in the shape of their kind; ``name`` is the same for a repeated request."""

    def __init__(self, name: str, model: str, at: datetime, words: RequestWords) -> None:
        self._words = words
        self._name = name
        self._model = model
        self._at = int(at.timestamp())

    @abstractmethod
    def complete(self, text: str) -> Mapping[str, Any]:
        """Return the answer at once."""

    @abstractmethod
    def beginning(self) -> Sequence[Event]:
        """Return what comes before the first piece."""

    @abstractmethod
    def delta(self, text: str) -> Sequence[Event]:
        """Return the next piece."""

    @abstractmethod
    def end(self, text: str) -> Sequence[Event]:
        """Return what comes after the last piece."""


class ChatReply(ReplyShape):
    """The shape of ``/v1/chat/completions``."""

    def complete(self, text: str) -> Mapping[str, Any]:
        """See `ReplyShape.complete`."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**self._object("chat.completion", choice), "usage": self._usage(text)}

    def beginning(self) -> Sequence[Event]:
        """See `ReplyShape.beginning`."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def delta(self, text: str) -> Sequence[Event]:
        """See `ReplyShape.delta`."""
        return [self._chunk({"content": text})]

    def end(self, text: str) -> Sequence[Event]:
        """See `ReplyShape.end`."""
        end = [self._chunk({}, "stop")]
        if self._words.shows_usage:
            end.append({**end[0], "choices": [], "usage": self._usage(text)})
        return [*end, "[DONE]"]

    def _usage(self, text: str) -> Mapping[str, int]:
        asked, said = self._words.tokens, estimate_tokens(text)
        return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}

    def _chunk(self, delta: Mapping[str, str], finish: str | None = None) -> Mapping[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._object("chat.completion.chunk", choice)

    def _object(self, kind: str, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "id": f"chatcmpl-{self._name}",
            "object": kind,
            "created": self._at,
            "model": self._model,
            "choices": [choice],
        }


class ResponsesReply(ReplyShape):
    """The shape of ``/v1/responses``, with its numbered events."""

    def __init__(self, name: str, model: str, at: datetime, words: RequestWords) -> None:
        super().__init__(name, model, at, words)
        self._events = 0

    def complete(self, text: str) -> Mapping[str, Any]:
        """See `ReplyShape.complete`."""
        asked, said = self._words.tokens, estimate_tokens(text)
        usage = {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": said,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": asked + said,
        }
        message = self._message("completed", [self._part(text)])
        return {**self._response("completed", [message]), "usage": usage}

    def beginning(self) -> Sequence[Event]:
        """See `ReplyShape.beginning`."""
        return [
            self._event("response.created", response=self._response("in_progress", [])),
            self._event("response.in_progress", response=self._response("in_progress", [])),
            self._event("response.output_item.added", output_index=0, item=self._message("in_progress", [])),
            self._of_text("response.content_part.added", part=self._part("")),
        ]

    def delta(self, text: str) -> Sequence[Event]:
        """See `ReplyShape.delta`."""
        return [self._of_text("response.output_text.delta", delta=text, logprobs=[])]

    def end(self, text: str) -> Sequence[Event]:
        """See `ReplyShape.end`."""
        item = self._message("completed", [self._part(text)])
        return [
            self._of_text("response.output_text.done", text=text, logprobs=[]),
            self._of_text("response.content_part.done", part=self._part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event("response.completed", response=self.complete(text)),
        ]

    def _event(self, kind: str, **more: Any) -> Mapping[str, Any]:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **more}

    def _of_text(self, kind: str, **more: Any) -> Mapping[str, Any]:
        return self._event(kind, item_id=f"msg_{self._name}", output_index=0, content_index=0, **more)

    def _part(self, text: str) -> Mapping[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _message(self, status: str, content: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        head = {"id": f"msg_{self._name}", "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": content}

    def _response(self, status: str, output: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": self._at,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "store": False,
            "tool_choice": "auto",
            "tools": [],
        }
