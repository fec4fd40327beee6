"""
The connection to a server: one task enters and leaves it, because the SDK's contexts belong to one task.
Turns put requests into its queue and wait with limits of their own. A begun request is lost with the
connection and never repeated, as its effect is unknown; others are refused or made on the next connection.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import anyio
import structlog

from agent_core.backoff import Backoff, BackoffPolicy
from agent_core.errors import AgentError
from agent_core.tools.mcp.definitions import Definition, Kind
from agent_core.tools.person_port import FormReply


@dataclass(frozen=True, slots=True)
class ElicitedQuestion:
    """A server's question to a person: a form, or an address to open."""

    message: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = None


@dataclass(slots=True)
class Era:
    """The era of the protocol that a server is spoken to in; the newer one has no requests of servers."""

    is_older: bool = False


Ask = Callable[[ElicitedQuestion], Awaitable[FormReply]]
"""Asks the person for whom a call is made."""


class ServerUnavailable(AgentError):
    """The server cannot be used now; nothing was asked of it."""

    temporary = True


class ServerLost(AgentError):
    """The connection ended during a call; whether the call was carried out is unknown."""

    temporary = True


class ServerError(AgentError):
    """The server answered that it does not do this."""


class ServerCouldNotAsk(ServerError):
    """The server wanted to ask a person, and gave the call up because this connection has no way for that."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """A call's text, and files (media type, content); ``failed``: the server reports an error."""

    text: str
    failed: bool = False
    files: tuple[tuple[str, bytes], ...] = ()


@dataclass
class Stderr:
    """The end of a program's standard error."""

    most: int = 4000
    said: bytearray = field(default_factory=bytearray)

    def add(self, piece: bytes) -> None:
        """Keep the end."""
        self.said += piece
        if len(self.said) > 2 * self.most:
            del self.said[: len(self.said) - self.most]

    def text(self) -> str:
        """The end, as text."""
        return bytes(self.said[-self.most :]).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Offer:
    """The offers of a server; ``left_out`` names the unusable ones and the reason."""

    definitions: tuple[Definition, ...]
    left_out: tuple[str, ...] = ()


class Link(Protocol):
    """An open connection. Calls may block for ever: the caller sets a limit."""

    is_outdated: bool
    """A new connection is to be made as soon as no call is in flight on this one."""

    @property
    def why(self) -> str:
        """Return why the connection has ended; empty while it is open."""
        ...

    async def wait_end(self) -> None:
        """Return when the connection has ended."""
        ...

    async def definitions(self, *, allowed: frozenset[str]) -> Offer:
        """Return the server's offers, restricted to ``allowed`` unless that is empty."""
        ...

    async def call(
        self, tool: str, arguments: Mapping[str, Any], ask: Ask | None = None, kind: Kind = "tool"
    ) -> ServerAnswer:
        """Call a tool; without ``ask`` its questions are declined. Raises ServerError or ServerLost."""
        ...


_MAX_WAITING = 32
_MAX_AT_ONCE = 4
_PATIENCE_S = 5.0
"""What is asked waits for the next try, if that is so near."""
_RETRY = BackoffPolicy(first_s=2.0, cap_s=300.0)
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class _Request:
    work: Callable[[Link], Awaitable[Any]]
    seconds: float
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    begun: bool = False
    result: Any = None
    error: AgentError | None = None

    def settle(self, *, result: Any = None, error: AgentError | None = None) -> None:
        if not self.done.is_set():
            self.result, self.error = result, error
            self.done.set()


class McpConnection:
    """
    A connection to one server, made on demand.

    Args:
        connect: Connects; raises `ServerUnavailable`.
        on_connected: Receives each new connection first.
        idle_s: The unused time after which it ends; infinite: never.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractAsyncContextManager[Link]],
        *,
        on_connected: Callable[[Link], Awaitable[None]],
        start_s: float,
        idle_s: float,
    ) -> None:
        self._name = name
        self._connect = connect
        self._on_connected = on_connected
        self._start_s = start_s
        self._idle_s = idle_s
        self._waiting: list[_Request] = []
        self._running: set[_Request] = set()
        self._news = anyio.Event()
        self._backoff = Backoff(_RETRY)
        self._again_at = -math.inf
        self._ready_at: float | None = None
        self.is_up = False
        self.trouble = ""
        """Why it could not be used when it was last tried; empty if it could."""

    @property
    def wait_s(self) -> float:
        """Return the seconds until the next attempt."""
        return max(0.0, self._again_at - anyio.current_time())

    async def ask(self, work: Callable[[Link], Awaitable[_T]], *, seconds: float) -> _T:
        """
        Run ``work`` on the connection, made on demand.

        Raises ServerUnavailable (nothing was asked), ServerLost (unknown if it was done), and what ``work``
        raises.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise ServerUnavailable("it has too many requests at the same time")
        if not self.is_up and self.wait_s > _PATIENCE_S:
            raise ServerUnavailable(f"{self.trouble}; it is not tried again for {self.wait_s:.0f} s")
        request = _Request(work, seconds)
        self._waiting.append(request)
        self._wake()
        try:
            with anyio.move_on_after(seconds + self._start_s):
                await request.done.wait()
        finally:
            request.scope.cancel()
            if request in self._waiting:
                self._waiting.remove(request)
        if request.error is not None:
            raise request.error
        if not request.done.is_set():
            if request.begun:
                raise ServerLost(f"there was no answer within {seconds:g} seconds")
            raise ServerUnavailable("it was busy with other calls until the time was up")
        return cast("_T", request.result)

    async def run(self, *, eager: bool = False) -> None:
        """Connect on demand, or with ``eager`` always, until cancelled; ends the work in progress."""
        try:
            while True:
                while not self._waiting and not eager:
                    await self._sleep(math.inf)
                await anyio.sleep(self.wait_s)
                self._ready_at = None
                try:
                    await self._one()
                except AgentError as error:
                    self._failed(ServerUnavailable(str(error)))
                except Exception as error:  # noqa: BLE001 - whatever a server brings about, it stays here
                    _log.exception("mcp.defective", server=self._name)
                    self._failed(ServerUnavailable(f"a defect: {type(error).__name__}"))
        finally:
            for request in [*self._waiting, *self._running]:
                request.settle(error=self._end_of(request, "squidbot was stopped"))

    def _failed(self, error: ServerUnavailable) -> None:
        self.trouble = str(error)
        up_s = 0.0 if self._ready_at is None else anyio.current_time() - self._ready_at
        delay_s = self._backoff.note_failure(random=random.random(), up_s=up_s)
        self._again_at = anyio.current_time() + delay_s
        _log.warning("mcp.unavailable", server=self._name, reason=self.trouble, again_s=round(delay_s, 1))
        if self._ready_at is not None and self.wait_s <= _PATIENCE_S:
            return  # it worked until now: what was not begun is made on the next connection
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.settle(error=error)

    async def _one(self) -> None:
        """One connection, from its start to its end."""
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + self._start_s) as limit:
                async with self._connect() as link:
                    await self._on_connected(link)
                    limit.deadline, self._ready_at = math.inf, anyio.current_time()
                    self.is_up, self.trouble = True, ""
                    _log.info("mcp.connected", server=self._name)
                    await self._serve(link)
                    self.is_up = False
                    limit.deadline = anyio.current_time() + 15.0
                    if link.why:
                        raise ServerUnavailable(link.why)
        finally:
            self.is_up = False
        if self._ready_at is None:
            raise ServerUnavailable(f"it was not ready within {self._start_s:g} seconds")
        self._backoff.reset()
        _log.info("mcp.ended", server=self._name)

    async def _serve(self, link: Link) -> None:
        """Carry requests out until the connection ends or nobody needs it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, link, tasks.cancel_scope)
            while True:
                while self._waiting and len(self._running) < _MAX_AT_ONCE and not link.is_outdated:
                    request = self._waiting.pop(0)
                    self._running.add(request)
                    tasks.start_soon(self._carry_out, request, link)
                idle_s = math.inf if self._running else 0.0 if link.is_outdated else self._idle_s
                is_over = not await self._sleep(idle_s) and not self._running
                if is_over and (link.is_outdated or not self._waiting):
                    tasks.cancel_scope.cancel()
                    return

    async def _watch(self, link: Link, scope: anyio.CancelScope) -> None:
        await link.wait_end()
        for request in list(self._running):
            request.settle(error=self._end_of(request, link.why))
        scope.cancel()

    async def _carry_out(self, request: _Request, link: Link) -> None:
        try:
            with request.scope:
                if request.scope.cancel_called:
                    return  # nobody waits for it any more
                request.begun = True
                request.scope.deadline = anyio.current_time() + request.seconds
                request.settle(result=await request.work(link))
            request.settle(error=ServerLost(f"there was no answer within {request.seconds:g} seconds"))
        except AgentError as error:
            request.settle(error=error)
        except Exception:  # noqa: BLE001 - whatever a server brings about, it stays here
            _log.exception("mcp.defective", server=self._name)
            request.settle(error=ServerLost("a defect in talking to it"))
        finally:
            request.settle(error=self._end_of(request, "the connection ended"))
            self._running.discard(request)
            self._wake()

    def _end_of(self, request: _Request, why: str) -> AgentError:
        return ServerLost(why) if request.begun else ServerUnavailable(why)

    def _wake(self) -> None:
        self._news.set()

    async def _sleep(self, seconds: float) -> bool:
        """Wait for news; whether there was any."""
        with anyio.move_on_after(seconds):
            await self._news.wait()
            self._news = anyio.Event()
            return True
        return False
