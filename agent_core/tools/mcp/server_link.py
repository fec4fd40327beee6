"""The interface of a connection to a server; nothing here needs the SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent_core.errors import AgentError
from agent_core.tools.mcp.definitions import Definition, Kind
from agent_core.tools.person_port import FormReply


@dataclass(frozen=True, slots=True)
class Question:
    """A server's question to a person: a form, or an address to open."""

    message: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = None


Ask = Callable[[Question], Awaitable[FormReply]]
"""Asks the person for whom a call is made."""


class ServerUnavailable(AgentError):
    """The server cannot be used now; nothing was asked of it."""

    temporary = True


class ServerLost(AgentError):
    """The connection ended during a call; whether the call was carried out is unknown."""

    temporary = True


class ServerError(AgentError):
    """The server answered that it does not do this."""


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

    async def wait_change(self) -> None:
        """Return when the server has announced a change of its offer since the last call of this."""
        ...

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        ask: Ask | None = None,
        kind: Kind = "tool",
    ) -> ServerAnswer:
        """Call a tool; without ``ask`` its questions are declined. Raises ServerError or ServerLost."""
        ...
