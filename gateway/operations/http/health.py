"""
The HTTP server with ``/livez``, ``/readyz``, ``/metrics`` and ``/status``, also on the control socket.
``/livez`` is 200 while turns are worked on, ``/readyz`` once every enabled channel has caught up, else 503
with the reason. Answers hold states, counts and the bot's addresses, never people or their words.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import anyio
import orjson
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from channels.base import LinkState
from channels.status import ChannelStatus
from gateway.errors import ListenFailed
from gateway.observability import metrics
from gateway.settings.problems import is_loopback

MAX_CONNECTIONS = 64
"""
Everybody on this machine may connect, and each connection costs one of the process's open files. When one
more comes, the oldest one that has not asked for anything yet has to go.
"""

_log = structlog.get_logger(__name__)

StatusReport = Callable[[], Awaitable[Mapping[str, Any]]]


_LIMIT_S = 5.0
"""Of the report, and of the gauges that are brought up to date."""


@dataclass(eq=False)
class Health:
    """
    Answers requests about the daemon's health.

    Args:
        status: Makes the report of ``/status``; it may be slow or fail.
        refresh: Updates the gauges before each ``/metrics``.
        started: True once ready.
        stuck: Returns why turns stall, or None.
    """

    channels: Callable[[], Sequence[ChannelStatus]]
    status: StatusReport
    _: KW_ONLY
    refresh: Callable[[], Awaitable[None]] | None = None
    started: Callable[[], bool] = lambda: True
    stuck: Callable[[], str | None] = lambda: None

    def routes(self) -> list[web.AbstractRouteDef]:
        """The four routes, to be added to an application."""
        return [
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.get("/status", self._status_report),
        ]

    def app(self, *, host: str, more: Sequence[web.AbstractRouteDef] = ()) -> web.Application:
        """
        An application for ``host``; on this machine's own addresses other names for it are refused, except
        below ``/console``, ``/hooks`` and ``/v1``, which look for themselves.

        ``more`` are routes besides those of health.
        """
        guards = [_known_host] if is_loopback(host) else []
        app = web.Application(client_max_size=65_536, middlewares=guards)
        app.add_routes([*self.routes(), *more])
        return app

    async def _livez(self, _request: web.Request) -> web.Response:
        why = self.stuck()
        if why is not None:
            return json_answer({"alive": False, "detail": why}, status=503)
        return json_answer({"alive": True})

    async def _readyz(self, _request: web.Request) -> web.Response:
        statuses = self.channels()
        waiting = {
            status.name: {
                "state": status.state.value,
                "detail": status.detail,
                "last_error": status.last_error,
            }
            for status in statuses
            if status.state is not LinkState.UP
        }
        started = self.started()
        report: dict[str, Any] = {
            "ready": started and not waiting,
            "up": [status.name for status in statuses if status.state is LinkState.UP],
            "waiting": waiting,
        }
        if not started:
            report["detail"] = "the daemon is starting"
        return json_answer(report, status=200 if report["ready"] else 503)

    async def _metrics(self, _request: web.Request) -> web.Response:
        metrics.show_channels(self.channels())
        if self.refresh is not None:
            try:
                with anyio.fail_after(_LIMIT_S):
                    await self.refresh()
            except Exception as error:  # noqa: BLE001 - old gauges are better than none
                _log.warning("metrics.stale", error=type(error).__name__)
        return web.Response(body=metrics.exposition(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _status_report(self, _request: web.Request) -> web.Response:
        try:
            with anyio.fail_after(_LIMIT_S):
                return json_answer(dict(await self.status()))
        except Exception as error:  # noqa: BLE001 - whoever asks must learn that something is wrong
            _log.warning("status.failed", error=type(error).__name__)
            return json_answer({"error": "the status is not available at the moment"}, status=503)


def json_answer(value: Any, *, status: int = 200) -> web.Response:
    """``value`` as a JSON response that nobody caches."""
    try:
        body = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Half a surrogate pair, which people can write and orjson cannot.
        body = json.dumps(value, default=str).encode()
    return web.Response(
        body=body, status=status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )


@asynccontextmanager
async def serve(app: web.Application, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve ``app`` and yield its port (chosen if 0). Raises ListenFailed."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        keepalive_timeout=15,
        shutdown_timeout=2,
        logger=_server_log(),
    )
    await runner.setup()
    listening: asyncio.Server | None = None
    try:
        try:
            listening = await asyncio.get_running_loop().create_server(
                lambda: next_handler(runner.server), host, port
            )
        except OSError as error:
            raise ListenFailed(
                f"gateway.http.listen: {host}:{port} cannot be used ({error.strerror or error}); does "
                "another program use it? Choose another port, or leave the key out"
            ) from error
        yield int(listening.sockets[0].getsockname()[1])
    finally:
        with anyio.CancelScope(shield=True):
            if listening is not None:
                listening.close()
            await runner.cleanup()


def next_handler(server: web.Server | None) -> asyncio.BaseProtocol:
    """Return the handler of the next client; it refuses if too many are being answered now."""
    if server is None:
        return _Refusal()
    open_ones = [one for one in server.connections if one.transport is not None]
    if len(open_ones) >= MAX_CONNECTIONS:
        # aiohttp does not tell otherwise whether one is being answered.
        idle = next((one for one in open_ones if one._current_request is None), None)  # noqa: SLF001
        if idle is None or not isinstance(idle.transport, asyncio.WriteTransport):
            return _Refusal()
        idle.transport.abort()
    return server()


class _Refusal(asyncio.Protocol):
    """Hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()


def _server_log() -> logging.Logger:
    """Return the logger for the HTTP server's own defects, without those of bad requests."""
    log = logging.getLogger("gateway.operations.http.health.http")
    log.addFilter(_is_no_bad_request)
    return log


def _is_no_bad_request(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, (HttpProcessingError, web.RequestPayloadError))


@web.middleware
async def _known_host(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A web page that has its own name point at this machine must not read what is told here."""
    name = request.url.host or ""
    if not is_loopback(name) and not request.path.startswith(("/console", "/hooks/", "/v1/")):
        return json_answer({"error": "ask for localhost or 127.0.0.1"}, status=403)
    return await handler(request)
