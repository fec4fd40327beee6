"""
HTTP to a server, with checks of every answer before the SDK reads it. No redirect is followed, not even
within the same host: only the configured address is contacted. Compressed content is refused. Only imported
together with the SDK.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

import anyio
import httpx2

from agent_core.tools.mcp.definitions import (
    MAX_BYTES,
    Allowance,
    LineReader,
    ServerMisbehaviour,
    check_message,
)
from agent_core.tools.mcp.mcp_logins import Bearer
from agent_core.tools.mcp.server_connection import ServerUnavailable

_METHOD, _SILENCE_S = "mcp-method", 600.0
_SESSION = "mcp-session-id"


class End:
    """The end of a connection, and its reason."""

    def __init__(self) -> None:
        self.why = ""
        self.hint = ""
        """The likely reason, if no connection comes about."""
        self.error: ServerUnavailable | None = None
        """The reason, where it is more than a text."""
        self.came = anyio.Event()

    def set(self, why: str | ServerUnavailable) -> None:
        """Set the reason; the first one counts."""
        if not self.why and isinstance(why, ServerUnavailable):
            self.error = why
        self.why = self.why or str(why)
        self.came.set()


class GuardedTransport(httpx2.AsyncBaseTransport):  # type: ignore[misc]
    """Sends requests and checks the answers; a server that misbehaves ends the connection."""

    def __init__(self, end: End, bearer: Bearer | None = None) -> None:
        self._inner = httpx2.AsyncHTTPTransport(retries=0, trust_env=False)
        self._end = end
        self._bearer = bearer
        self._allowance = Allowance()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """One exchange."""
        if request.headers.get(_METHOD) == "subscriptions/listen":  # it is silent for long
            timeout = request.extensions.get("timeout", {})
            request.extensions = {**request.extensions, "timeout": {**timeout, "read": _SILENCE_S}}
        response = await self._answered(request)
        try:
            return await self._looked_at(request, response)
        except ServerMisbehaviour as error:
            await response.aclose()
            self._end.set(str(error))
            raise httpx2.ReadError(str(error), request=request) from error

    async def _answered(self, request: httpx2.Request) -> httpx2.Response:
        """The answer; what was refused for its login was not carried out, and is made with a new one."""
        if self._bearer is None:
            return await self._inner.handle_async_request(request)
        while True:
            try:
                token = await self._bearer.token()
            except ServerUnavailable as error:
                self._end.set(error)
                raise httpx2.ConnectError("no login", request=request) from error
            request.headers["authorization"] = f"Bearer {token}"
            response = await self._inner.handle_async_request(request)
            if response.status_code != HTTPStatus.UNAUTHORIZED:
                return response
            if not self._bearer.note_refused_token(token):
                await response.aclose()
                self._end.set(self._bearer.login_error())
                raise httpx2.ConnectError("no login", request=request)
            await response.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()

    async def _looked_at(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        status = response.status_code
        if 300 <= status < 400:
            raise ServerMisbehaviour(
                "it redirects to another address, which is not followed; name that one as url"
            )
        if status in (401, 403):
            raise ServerMisbehaviour(
                f"it needs a login (HTTP {status}): set headers, such as Authorization, or auth: oauth"
            )
        if status == 404 and _SESSION in request.headers:
            raise ServerMisbehaviour("it has forgotten the session")
        if status in (404, 405) and request.method == "POST":
            self._end.hint = (
                f"it takes no messages at this address (HTTP {status}): url must be that of streamable HTTP, "
                "often …/mcp; a server that has only HTTP+SSE, often …/sse, has to be updated"
            )
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ServerMisbehaviour("it sends compressed content that was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream":
            response.stream = _Events(response.stream, self._allowance, self._end)
            return response
        body = bytearray()
        async for piece in response.stream:
            body += piece
            if len(body) > MAX_BYTES:
                raise ServerMisbehaviour(f"it sent a message of more than {MAX_BYTES // 1_000_000} MB")
        await response.stream.aclose()
        self._allowance.spend(len(body), now=anyio.current_time())
        check_message(bytes(body))
        response.stream = httpx2.ByteStream(bytes(body))
        return response


class _Events(httpx2.AsyncByteStream):  # type: ignore[misc]
    def __init__(self, inner: httpx2.AsyncByteStream, allowance: Allowance, end: End) -> None:
        self._inner = inner
        self._allowance = allowance
        self._end = end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        lines = LineReader()
        async for piece in self._inner:
            try:
                for line in lines.feed(piece):
                    check_message(line)
                    if line.startswith((b"data", b":")):
                        self._allowance.spend(len(line), now=anyio.current_time())
            except ServerMisbehaviour as error:
                self._end.set(str(error))
                raise httpx2.ReadError(str(error)) from error
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
