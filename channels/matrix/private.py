"""
Everything that touches nio, and above all nio's private parts: `NioHomeserver`, a `Homeserver` by nio.

Imported late, because nio and what it brings take half a second and 16 MB. nio is pinned to one minor
version; each deviation has its reason here and a test in ``tests/unit/test_matrix_private.py``, so that it
can go when upstream has caught up.

What is different from plain nio:

- A request is made once. nio would repeat it by itself, for ever on 429 and on lost connections
  (``max_limit_exceeded``, ``max_timeouts``), and would not see ``Retry-After``.
- ``/sync`` is kept as the server sent it (a copy: nio takes the ``content`` out of invitations). What nio
  makes of it (`nio.Event` objects, room models) needs a response that fits its schemas, and for every schema
  somebody sends the event that does not. Our own reading starts from the raw answer, so no event can take
  its neighbours along.
- Whatever nio raises while it digests an answer is logged, counted and over: in plain nio one malformed
  event leaves ``sync()`` with an exception, and every message of that answer is lost (B19).
- Bodies are read up to a limit. aiohttp's exceptions, some of which nio lets through (B8), become
  `LinkBroken`.
- nio's logger is kept at ERROR: below it, nio writes whole responses and fragments of messages.
"""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
import anyio
import structlog
from nio import AsyncClient, AsyncClientConfig, SyncResponse
from nio.responses import DeviceList, DeviceOneTimeKeyCount, Rooms

from channels.matrix.wire import Answer, Credentials, LinkBroken, SyncRequest

__all__ = ["GuardedClient", "NioHomeserver"]

_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_MAX_SYNC_BYTES = 128 * 1024 * 1024
_SYNC_SLACK_S = 20.0
_FULL_SYNC_LIMIT_S = 180.0
_log = structlog.get_logger(__name__)


class _TooLarge(Exception):
    """An answer is larger than any that makes sense."""


class GuardedClient(AsyncClient):  # type: ignore[misc] # nio is not looked into by the type checker
    """
    nio's client, which survives whatever a server passes on to it.

    ``last_sync`` is the newest answer to ``/sync`` as it came; ``guarded`` counts what nio could not digest.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.last_sync: Answer | None = None
        self.guarded = 0

    async def create_matrix_response(
        self, response_class: Any, transport_response: aiohttp.ClientResponse, *args: Any, **kwargs: Any
    ) -> Any:
        """Keep what ``/sync`` answered before nio makes something of it."""
        if response_class is not SyncResponse:
            return await super().create_matrix_response(response_class, transport_response, *args, **kwargs)
        body = await _read(transport_response, _MAX_SYNC_BYTES)
        self.last_sync = _answer(transport_response, body)
        try:
            # Decoded once more, because nio takes pieces out of what it reads (B16).
            response = SyncResponse.from_dict(_object(body))
        except Exception as error:  # noqa: BLE001 - any malformed event may raise anything here
            self._guard("response", error)
            response = _empty_sync(self.last_sync.body)
        response.transport_response = transport_response
        return response

    async def receive_response(self, response: Any) -> None:
        """Digest an answer; what of ``/sync`` cannot be digested is left out."""
        if not isinstance(response, SyncResponse):
            await super().receive_response(response)
            return
        try:
            await super().receive_response(response)
        except Exception as error:  # noqa: BLE001 - as above; our own reading does not depend on it
            self._guard("sync", error)

    def _handle_timeline_event(self, event: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._handle_timeline_event(event, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - one event must not take its neighbours along
            self._guard("timeline", error)
            return None

    def _handle_decrypt_to_device(self, to_device_event: Any) -> Any:
        try:
            return super()._handle_decrypt_to_device(to_device_event)
        except Exception as error:  # noqa: BLE001 - any account can send any garbage to our device (B19)
            self._guard("to_device", error)
            return None

    def _guard(self, where: str, error: Exception) -> None:
        self.guarded += 1
        _log.warning("matrix.event_undigested", where=where, error=type(error).__name__)


class NioHomeserver:
    """
    A `Homeserver` that speaks through nio's client.

    Args:
        address: The homeserver's address.
        user_id: Whose client this is.
        tls_ca_file: A further authority to believe.
        max_answer_bytes: A longer answer (to anything but ``/sync``) is not read to its end.

    Raises:
        OSError, ssl.SSLError: The authority's file cannot be used.
    """

    def __init__(
        self,
        address: str,
        user_id: str,
        *,
        tls_ca_file: Path | None = None,
        max_answer_bytes: int = _MAX_ANSWER_BYTES,
    ) -> None:
        logging.getLogger("nio").setLevel(logging.ERROR)
        context: ssl.SSLContext | bool = True
        if tls_ca_file is not None:
            context = ssl.create_default_context()
            context.load_verify_locations(tls_ca_file)
        self._max_answer_bytes = max_answer_bytes
        self.credentials: Credentials | None = None
        self.client = GuardedClient(
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
    ) -> Answer:
        """Make one request, once; see `Homeserver.request`."""
        headers = {"Content-Type": "application/json"}
        if self.credentials is not None and not anonymous:
            headers["Authorization"] = f"Bearer {self.credentials.access_token}"
        address = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body)

        async def call() -> Answer:
            response = await self.client.send(method, address, data, headers, None, timeout_s)
            return _answer(response, await _read(response, self._max_answer_bytes))

        return await _within(timeout_s, call)

    async def sync(self, request: SyncRequest) -> Answer:
        """Ask for news, once; see `Homeserver.sync`."""
        if self.credentials is None:
            raise LinkBroken("not logged in", maybe_taken=False)
        login = self.credentials
        # nio forgets its token on a soft logout, and ours may have been renewed.
        if self.client.access_token != login.access_token or self.client.device_id != login.device_id:
            self.client.restore_login(login.user_id, login.device_id, login.access_token)
        self.client.next_batch = ""

        async def call() -> Answer:
            self.client.last_sync = None
            await self.client.sync(
                timeout=int(request.wait_s * 1000),
                sync_filter=_filter(request.timeline_limit),
                since=request.since,
                full_state=True if request.full_state else None,
            )
            return self.client.last_sync or Answer(0, {})

        limit_s = _FULL_SYNC_LIMIT_S if request.full_state or not request.since else _SYNC_SLACK_S
        return await _within(request.wait_s + limit_s, call)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.client.close()


def _filter(timeline_limit: int) -> dict[str, Any]:
    nothing = {"not_types": ["*"]}
    # Redundant ones too: the registry of rooms begins empty at each start, what the server believes to have
    # told this device earlier notwithstanding.
    lazily = {"lazy_load_members": True, "include_redundant_members": True}
    return {
        "presence": nothing,
        "account_data": {"types": ["m.direct"]},
        "room": {
            "timeline": {"limit": timeline_limit, **lazily},
            "state": lazily,
            "ephemeral": nothing,
            "account_data": nothing,
        },
    }


async def _within(limit_s: float, call: Any) -> Answer:
    """Run a request within a limit and translate whatever it raises."""
    try:
        with anyio.fail_after(limit_s):
            return cast("Answer", await call())
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
    except _TooLarge as error:
        raise LinkBroken("the answer is too large to be read", maybe_taken=True) from error
    except aiohttp.ClientResponseError as error:
        raise LinkBroken(
            "what answers there is no HTTP server; is the port right?", maybe_taken=True
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise LinkBroken(f"the connection broke: {type(error).__name__}", maybe_taken=True) from error
    except RuntimeError as error:
        # What aiohttp raises when `aclose` has overtaken a request.
        if "closed" not in str(error).lower():
            raise
        raise LinkBroken("the connection was closed", maybe_taken=True) from error


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in response.content.iter_chunked(65_536):
            body += chunk
            if len(body) > max_bytes:
                raise _TooLarge  # noqa: TRY301 - closed like every other failure
    except BaseException:
        response.close()
        raise
    response.release()
    return bytes(body)


def _answer(response: aiohttp.ClientResponse, body: bytes) -> Answer:
    decoded = _object(body)
    return Answer(response.status, decoded, _retry_after_s(response, decoded))


def _object(body: bytes) -> dict[str, Any]:
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _retry_after_s(response: aiohttp.ClientResponse, body: Mapping[str, Any]) -> float | None:
    """Seconds from the header (a date there is not worth the trouble) or the body."""
    found: list[float] = []
    header = response.headers.get("Retry-After", "").strip()
    if header.isdecimal():
        found.append(float(header[:9]))
    in_body = body.get("retry_after_ms")
    if isinstance(in_body, int) and in_body >= 0:
        found.append(in_body / 1000)
    return max(found, default=None)


def _empty_sync(body: Mapping[str, Any]) -> Any:
    return SyncResponse(
        str(body.get("next_batch", "")),
        Rooms({}, {}, {}),
        DeviceOneTimeKeyCount(None, None),
        DeviceList([], []),
        [],
        [],
    )
