"""
The server side of the control socket: serves the operations on ``HOME/run/control.sock``. HTTP with JSON,
because it is there already: ``POST /op/NAME`` with the arguments as an object. The socket has mode 0600 in a
folder of mode 0700, so whoever can speak here owns the home folder anyway. Other routes (health, the terminal
channel) can be mounted beside.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog
from aiohttp import web

from channels.terminal.channel import TerminalChannel
from gateway.errors import GatewayError, StateUnusable, describe
from gateway.operations.control.control_client import MAX_REQUEST_BYTES, TOO_MUCH
from gateway.operations.control.terminal_routes import terminal_routes
from gateway.operations.http.health import Health, json_answer, next_handler
from gateway.operations.operation_context import OperationContext
from gateway.store.lease import LeaseTaken
from gateway.system.home import Home, short_path

if TYPE_CHECKING:
    from gateway.supervision.gateway import Gateway

_LIMIT_S = 60.0
_log = structlog.get_logger(__name__)


@asynccontextmanager
async def serve_control(
    home: Home,
    operations: OperationContext,
    *,
    health: Health | None = None,
    built: Gateway | None = None,
    routes: Sequence[web.AbstractRouteDef] = (),
) -> AsyncIterator[None]:
    """
    Serve the operations during the block, under the home's lock: an existing socket is a leftover.

    It serves ``health`` and the terminal channel of ``built``, too. Raises StateUnusable.
    """

    async def standby_notice() -> str:
        return "" if built is None else await built.standby_notice()

    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    app.add_routes([web.post("/op/{name}", _Calls(operations, standby_notice).answer), *routes])
    if health is not None:
        app.add_routes(health.routes())
    terminal = built.channels.get("terminal") if built is not None else None
    if isinstance(terminal, TerminalChannel):
        app.add_routes(terminal_routes(terminal, standby_notice))
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=2)
    await runner.setup()
    path = home.control_socket
    listening: asyncio.Server | None = None
    try:
        try:
            _remove_left_over(path)
            with short_path(path) as short:
                listening = await asyncio.get_running_loop().create_unix_server(
                    lambda: next_handler(runner.server), short
                )
            path.chmod(0o600)
        except OSError as error:
            raise StateUnusable(
                f"the control socket {path} cannot be created: {error.strerror or error}", home=str(home.root)
            ) from error
        yield
    finally:
        with anyio.CancelScope(shield=True):
            if listening is not None:
                listening.close()
            await runner.cleanup()
            if listening is not None:
                path.unlink(missing_ok=True)


class _Calls:
    """Turns requests into operations and their errors into answers."""

    def __init__(self, operations: OperationContext, standby_notice: Callable[[], Awaitable[str]]) -> None:
        self._operations = operations
        self._not_here = standby_notice

    async def _refuse_elsewhere(self, name: str) -> None:
        if name != "status" and (refusal := await self._not_here()):
            raise LeaseTaken(refusal)

    async def answer(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            arguments = await request.json() if request.can_read_body else {}
            if not isinstance(arguments, dict):
                return _refused("RequestInvalid", "the arguments must be an object", 2, status=400)
            with anyio.fail_after(_LIMIT_S):
                await self._refuse_elsewhere(name)
                result = await self._operations.call(name, arguments)
                return json_answer({"result": result, "timezone": os.environ.get("TZ", "")})
        except GatewayError as error:
            return _refused(type(error).__name__, str(error), error.exit_code, status=400)
        except (ValueError, RecursionError, OverflowError, web.HTTPRequestEntityTooLarge) as error:
            is_long = isinstance(error, web.HTTPRequestEntityTooLarge)
            why = TOO_MUCH if is_long else "the arguments cannot be read"
            return _refused("RequestInvalid", why, 2, status=400)
        except TimeoutError:
            return _refused("TimeoutError", "this took too long; try again later", 75, status=503)
        except Exception as error:  # noqa: BLE001 - the person gets the sentence, the log gets the rest
            told = describe(error)
            known = hasattr(error, "public")
            fields = {**told.fields, "operation": name}  # the store calls its own calls so, too
            _log.error("control.failed", **fields, exc_info=None if known else error)
            message = (
                str(error)
                if known
                else f"unexpected {type(error).__name__}; the daemon's log has the details"
            )
            code = 75 if told.temporary else 74 if known else 70  # as at a prompt without the daemon
            return _refused(type(error).__name__, message, code, status=500)


def _refused(kind: str, message: str, exit_code: int, *, status: int) -> web.Response:
    return json_answer({"error": {"kind": kind, "message": message, "exit_code": exit_code}}, status=status)


def _remove_left_over(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(17, "this is not a socket; remove it", str(path))
    path.unlink()
