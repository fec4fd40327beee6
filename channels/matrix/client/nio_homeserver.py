"""
Everything that uses nio's client: `NioHomeserver`, a `Homeserver` by nio. Imported late: half a second and 16
MB. nio is pinned, and each deviation has a test in ``tests/unit/channels/matrix/test_nio_client.py``. A
request is made once: nio would repeat it for ever and aiohttp would repeat a PUT on a broken kept-alive
connection (`_once`). ``/sync`` is read raw: one malformed event would raise from nio's ``sync()`` and lose
the answer's others, and it keeps models of all rooms. Bodies are bounded, exceptions become `LinkBroken`, and
nio's log stays at ERROR, as it writes whole responses.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
import anyio
import anyio.lowlevel
from nio import AsyncClient, AsyncClientConfig

from agent_core.http_guards import BoundedResponse
from channels.matrix.client.homeserver import (
    CLIENT,
    AnswerTooLong,
    Download,
    HttpAnswer,
    LinkBroken,
    MatrixCredentials,
    SyncRequest,
)
from channels.matrix.client.json_access import Trimmer, decode_object

MAX_ANSWER_BYTES = 16 * 1024 * 1024
_PART_OF_ANSWER, _PART_OF_SYNC = 3, 4
"""How deep an item of a list lies in an answer, and a room or invitation in one of ``/sync``."""
SYNC_SLACK_S = 20.0
_NEXT_BYTE_LIMIT_S = 15.0


class NioHomeserver:
    """
    A `Homeserver` through nio's client. Raises OSError for an unusable CA file.

    Longer answers than `MAX_ANSWER_BYTES` (except ``/sync``) are cut; `SYNC_SLACK_S` extends the wait.
    """

    def __init__(self, address: str, user_id: str, *, tls_ca_file: Path | None = None) -> None:
        logging.getLogger("nio").setLevel(logging.ERROR)
        context: ssl.SSLContext | bool = True
        if tls_ca_file is not None:
            context = ssl.create_default_context()
            context.load_verify_locations(tls_ca_file)
        self.credentials: MatrixCredentials | None = None
        self.client = AsyncClient(
            address,
            user_id,
            ssl=context,
            config=AsyncClientConfig(
                max_limit_exceeded=0,
                max_timeouts=0,
                max_timeout_retry_wait_time=5,
                store_sync_tokens=False,
                encryption_enabled=False,
            ),
        )

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        anonymous: bool = False,
        part_bytes: int | None = None,
    ) -> HttpAnswer:
        """Make one request, once; see `Homeserver.request`."""
        headers = {"Content-Type": "application/json"}
        if self.credentials is not None and not anonymous:
            headers["Authorization"] = f"Bearer {self.credentials.access_token}"
        address = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body)

        async def call() -> HttpAnswer:
            response = await self._send(method, address, data, headers, timeout_s)
            trimmer = None if part_bytes is None else Trimmer(_PART_OF_ANSWER, part_bytes)
            return _answer(response, await _read(response, MAX_ANSWER_BYTES, trimmer))

        return await _within(timeout_s, call)

    async def sync(self, request: SyncRequest) -> HttpAnswer:
        """Ask for news, once; see `Homeserver.sync`."""
        if self.credentials is None:
            raise LinkBroken("not logged in", maybe_taken=False)
        query = {"timeout": str(int(request.wait_s * 1000)), "filter": _filter(request.timeline_limit)}
        if request.since is not None:
            query["since"] = request.since
        if request.full_state:
            query["full_state"] = "true"
        address = f"{CLIENT}/sync?{urlencode(query)}"

        async def call() -> HttpAnswer:
            response = await self._send("GET", address, None, self._token(), _NO_LIMIT)
            trimmer = None if request.part_bytes is None else Trimmer(_PART_OF_SYNC, request.part_bytes)
            return _answer(response, await _read(response, 32 * 1024 * 1024, trimmer))

        is_slow = request.full_state or not request.since or request.part_bytes is not None
        limit_s = 180.0 if is_slow else SYNC_SLACK_S
        return await _within(request.wait_s + limit_s, call)

    @asynccontextmanager
    async def download(
        self, path: str, *, query: Mapping[str, str] | None = None, anonymous: bool = False
    ) -> AsyncGenerator[Download, None]:
        """Fetch a file, once; see `Homeserver.download`."""
        address = f"{path}?{urlencode(query)}" if query else path
        # Packed content could be a thousand times as large as what is counted on the way.
        headers = {"Accept-Encoding": "identity", **self._token(anonymous=anonymous)}
        with link_errors(), anyio.fail_after(30.0):
            response = await self._send("GET", address, None, headers, _NO_LIMIT)
        try:
            if response.status == 200:
                yield Download(HttpAnswer(200, {}), response.content_length, _chunks(response))
            else:
                with link_errors(), anyio.fail_after(_NEXT_BYTE_LIMIT_S):
                    refusal = _answer(response, await _read(response, 64 * 1024))
                yield Download(refusal, None, _nothing())
        finally:
            response.close()

    async def upload(
        self,
        path: str,
        content: AsyncIterator[bytes],
        *,
        size_bytes: int,
        media_type: str,
        query: Mapping[str, str] | None = None,
        timeout_s: float = 90.0,
    ) -> HttpAnswer:
        """Send a file, once; see `Homeserver.upload`."""
        address = f"{path}?{urlencode(query)}" if query else path
        headers = {"Content-Type": media_type, "Content-Length": str(size_bytes), **self._token()}

        async def call() -> HttpAnswer:
            response = await self._send("POST", address, content, headers, timeout_s)
            return _answer(response, await _read(response, MAX_ANSWER_BYTES))

        return await _within(timeout_s, call)

    async def _send(
        self, method: str, address: str, data: Any, headers: dict[str, str], timeout: Any
    ) -> aiohttp.ClientResponse:
        if not self.client.client_session:
            limits = aiohttp.ClientTimeout(total=self.client.config.request_timeout)
            self.client.client_session = aiohttp.ClientSession(
                timeout=limits, middlewares=(_once,), response_class=BoundedResponse
            )
        sent = await self.client.send(method, address, data, headers, None, timeout)
        return cast("aiohttp.ClientResponse", sent)

    def _token(self, *, anonymous: bool = False) -> dict[str, str]:
        if self.credentials is None or anonymous:
            return {}
        return {"Authorization": f"Bearer {self.credentials.access_token}"}

    async def aclose(self) -> None:
        """Close all connections."""
        await self.client.close()


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """
    A request that changes something is not repeated behind our back.

    aiohttp repeats every PUT and DELETE once for which a connection broke (RFC 9110, section 9.2.2), unless
    what is raised is none of its own errors. Reading again costs nothing, so that stays.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise  # never left; not repeated either
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method in ("GET", "HEAD"):
            raise
        raise LinkBroken(f"the connection broke: {type(error).__name__}", maybe_taken=True) from error


@lru_cache
def _filter(timeline_limit: int) -> str:
    nothing = {"not_types": ["*"]}
    # Redundant ones too: the registry of rooms begins empty at each start, what the server believes to have
    # told this device earlier notwithstanding.
    lazily = {"lazy_load_members": True, "include_redundant_members": True}
    wanted = {
        "presence": nothing,
        "account_data": {"types": ["m.direct"]},
        "room": {
            "timeline": {"limit": timeline_limit, **lazily},
            "state": lazily,
            "ephemeral": nothing,
            "account_data": nothing,
        },
    }
    return json.dumps(wanted, separators=(",", ":"))


async def _within(limit_s: float, call: Any) -> HttpAnswer:
    """Run a request within a limit and translate whatever it raises."""
    with link_errors(), anyio.fail_after(limit_s):
        return cast("HttpAnswer", await call())


_NO_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=10.0)


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while True:
        with link_errors(), anyio.fail_after(_NEXT_BYTE_LIMIT_S):
            piece = await response.content.readany()
        if not piece:
            return
        yield piece


async def _nothing() -> AsyncIterator[bytes]:
    for piece in list[bytes]():
        yield piece


async def _read(response: aiohttp.ClientResponse, max_bytes: int, trimmer: Trimmer | None = None) -> bytes:
    body = bytearray()
    try:
        async for chunk in response.content.iter_chunked(65_536 if trimmer is None else 16_384):
            if trimmer is None:
                body += chunk
            else:
                body += trimmer.feed(chunk)
                await anyio.lowlevel.checkpoint()  # brackets take their time
            if len(body) > max_bytes:
                raise AnswerTooLong("the answer is too large to be read", maybe_taken=True)  # noqa: TRY301 - closed like every other failure
    except BaseException:
        response.close()
        raise
    response.release()
    return bytes(body)


def _answer(response: aiohttp.ClientResponse, body: bytes) -> HttpAnswer:
    found = decode_object(body)
    return HttpAnswer(response.status, found, _retry_after_s(response, found))


def _retry_after_s(response: aiohttp.ClientResponse, body: Mapping[str, Any]) -> float | None:
    """Seconds from the header (a date there is not worth the trouble) or the body."""
    found: list[float] = []
    header = response.headers.get("Retry-After", "").strip()
    if header.isdecimal():
        found.append(float(header[:9]))
    in_body = body.get("retry_after_ms")
    if isinstance(in_body, int) and in_body >= 0:
        found.append(min(in_body, 10**9) / 1000)
    return max(found, default=None)


@contextmanager
def link_errors() -> Iterator[None]:
    """Translate the failures of a connection inside the block into `LinkBroken`."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        raise LinkBroken(
            f"the server's certificate is not trusted: {error.certificate_error}",
            maybe_taken=False,
            certificate=True,
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise LinkBroken(f"cannot connect: {error.os_error}", maybe_taken=False) from error
    except TimeoutError as error:
        raise LinkBroken("the server did not answer in time", maybe_taken=True) from error
    except aiohttp.ClientResponseError as error:
        raise LinkBroken(
            "what answers there is not an HTTP server; is the port right?", maybe_taken=True
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise LinkBroken(f"the connection broke: {type(error).__name__}", maybe_taken=True) from error
    except RuntimeError as error:
        # What aiohttp raises when `aclose` has overtaken a request.
        if "closed" not in str(error).lower():
            raise
        raise LinkBroken("the connection was closed", maybe_taken=True) from error
