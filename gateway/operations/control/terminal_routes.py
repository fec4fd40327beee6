"""
The terminal channel over the control socket, for `squidbot chat` beside a running daemon.

``/terminal?session=NAME`` is a websocket: ``{"say": TEXT, "id": NATIVE_ID}`` gets ``{"type": "accepted",
"id": …}`` once stored, or ``{"type": "refused", …}``. Events are as in ``terminal_link.py``; an answer
counts as delivered with the client's ``{"ack": ID}``. `RemoteTerminal` is the client, used like a
`TerminalLink`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import aiohttp
import anyio
from aiohttp import web

from channels.base import ChannelUnavailable
from channels.terminal.channel import TerminalChannel
from channels.terminal.terminal_link import Answer, Preview, TerminalLink, Typing, parse_event
from gateway.operations.control.control_client import DaemonGone
from gateway.system.home import Home, short_path

_MESSAGE_LIMIT = 4_000_000
_PING_S = 30.0


def terminal_routes(
    terminal: TerminalChannel, standby_notice: Callable[[], Awaitable[str]]
) -> list[web.AbstractRouteDef]:
    """The route that connects to ``terminal``; ``standby_notice`` says why not on this machine."""

    async def talk(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(heartbeat=_PING_S, max_msg_size=_MESSAGE_LIMIT)
        await socket.prepare(request)
        try:
            link = terminal.attach(request.query.get("session") or "main")
        except ChannelUnavailable as error:
            await socket.close(code=aiohttp.WSCloseCode.TRY_AGAIN_LATER, message=str(error).encode()[:120])
            return socket
        await _Talk(socket, link, standby_notice).run()
        return socket

    return [web.get("/terminal", talk)]


class _Talk:
    """One client and its link."""

    def __init__(
        self, socket: web.WebSocketResponse, link: TerminalLink, elsewhere: Callable[[], Awaitable[str]]
    ) -> None:
        self._elsewhere = elsewhere
        self._socket = socket
        self._link = link
        self._waits_for = ""
        self._confirmed = anyio.Event()

    async def run(self) -> None:
        """Run until either side leaves."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, tasks.cancel_scope)
                await self._listen()
                tasks.cancel_scope.cancel()
        finally:
            # Closed without the order of ``async with``: an unconfirmed answer goes to the next link.
            self._link.close()
            with anyio.CancelScope(shield=True), anyio.move_on_after(2):
                await self._socket.close()

    async def _write(self, scope: anyio.CancelScope) -> None:
        try:
            async for event in self._link:
                if isinstance(event, Answer):
                    self._waits_for, self._confirmed = event.id, anyio.Event()
                    await self._socket.send_str(event.model_dump_json())
                    await self._confirmed.wait()
                else:
                    await self._socket.send_str(event.model_dump_json())
        except ConnectionError:
            pass
        # The channel has closed the link, or the client is gone.
        scope.cancel()

    async def _listen(self) -> None:
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            try:
                wish = json.loads(message.data)
            except (ValueError, RecursionError):
                continue
            if not isinstance(wish, dict):
                continue
            if isinstance(wish.get("say"), str):
                await self._say(wish["say"], str(wish.get("id") or secrets.token_hex(16)))
            elif wish.get("ack") == self._waits_for:
                self._confirmed.set()

    async def _say(self, text: str, native_id: str) -> None:
        told: dict[str, Any] = {"type": "accepted", "id": native_id}
        try:
            await self._link.say(text, native_id=native_id)
        except ChannelUnavailable as error:
            told = {"type": "refused", "id": native_id, "message": await self._elsewhere() or str(error)}
        try:
            await self._socket.send_str(json.dumps(told))
        except ConnectionError:
            return


class RemoteTerminal:
    """A link to a daemon's terminal channel: context manager and iterator. Raises DaemonGone."""

    def __init__(self, home: Home, session: str = "main") -> None:
        self._home = home
        self._session = session
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._at_hand: str | None = None
        self._saying: dict[str, tuple[anyio.Event, list[str]]] = {}

    async def say(self, text: str, *, native_id: str | None = None) -> str:
        """Do `TerminalLink.say` while somebody iterates. Raises ChannelUnavailable: repeat with this id."""
        native_id = native_id or secrets.token_hex(16)
        over = anyio.Event()
        refusal: list[str] = []
        self._saying[native_id] = (over, refusal)
        try:
            await self._send({"say": text, "id": native_id})
            with anyio.move_on_after(30.0) as limit:
                await over.wait()
        finally:
            self._saying.pop(native_id, None)
        if limit.cancelled_caught:
            raise ChannelUnavailable("the daemon did not confirm that it has the message; send it again")
        if refusal:
            raise ChannelUnavailable(refusal[0])
        return native_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Answer | Preview | Typing:
        """The next event; coming back for it confirms the answer before. Ends when the daemon does."""
        if self._at_hand is not None:
            answer_id, self._at_hand = self._at_hand, None
            await self._send({"ack": answer_id})
        assert self._socket is not None
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            told = json.loads(message.data)
            if told.get("type") in ("accepted", "refused"):
                self._note_result(told)
                continue
            event = parse_event(message.data)
            if isinstance(event, Answer):
                self._at_hand = event.id
            return event
        for over, refusal in self._saying.values():
            refusal.append("the daemon has ended; say it again when it is back")
            over.set()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        with short_path(self._home.control_socket) as path:
            self._client = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path))
            try:
                self._socket = await self._client.ws_connect(
                    "http://localhost/terminal", params={"session": self._session}, heartbeat=_PING_S,
                    max_msg_size=_MESSAGE_LIMIT,
                )  # fmt: skip
            except (aiohttp.ClientError, OSError) as error:
                await self._client.close()
                raise DaemonGone(f"{DaemonGone.__doc__} ({type(error).__name__})") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(2):
            if error is None and self._at_hand is not None:
                with suppress(ChannelUnavailable):
                    await self._send({"ack": self._at_hand})
            if self._socket is not None:
                await self._socket.close()
            if self._client is not None:
                await self._client.close()

    async def _send(self, wish: dict[str, Any]) -> None:
        assert self._socket is not None
        try:
            await self._socket.send_str(json.dumps(wish))
        except (ConnectionError, aiohttp.ClientError) as error:
            raise ChannelUnavailable("the daemon has ended; say it again when it is back") from error

    def _note_result(self, told: dict[str, Any]) -> None:
        waiting = self._saying.get(str(told.get("id")))
        if waiting is None:
            return
        over, refusal = waiting
        if told["type"] == "refused":
            refusal.append(str(told.get("message", "refused")))
        over.set()
