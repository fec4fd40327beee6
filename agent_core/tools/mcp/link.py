"""The interface of a connection to a server; nothing here needs the SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent_core.errors import AgentError
from agent_core.models import Message
from agent_core.tools.asking import Reply
from agent_core.tools.mcp.definitions import Definition, Kind


@dataclass(frozen=True, slots=True)
class Question:
    """What a server wants to know of a person, as it says it: by a form, or by an address to be opened."""

    message: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = None


Ask = Callable[[Question], Awaitable[Reply]]
"""Asks the person for whom a call is made."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a model has said to a server. ``cut``: it had more to say."""

    text: str
    model: str
    cut: bool = False


Sample = Callable[[Sequence[Message], int], Awaitable[Sampled]]
"""Has a model answer what a server has written, in so many tokens at most. Raises `AgentError`."""


class ServerUnavailable(AgentError):
    """The server cannot be used now; nothing was asked of it."""

    temporary = True


class ServerLost(AgentError):
    """The connection ended while something was asked; whether it was done is unknown."""

    temporary = True


class ServerError(AgentError):
    """The server has answered that it does not do this."""


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a call gave: ``text`` as the server wrote it, and ``files`` as pairs of media type and content.

    ``failed``: the server calls it an error.
    """

    text: str
    failed: bool = False
    files: tuple[tuple[str, bytes], ...] = ()


@dataclass
class Stderr:
    """The end of what a program has said on its standard error."""

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


class Link(Protocol):
    """A connection that stands. Every call may take for ever: whoever calls has a limit."""

    @property
    def why(self) -> str:
        """Why the connection has ended; empty while it stands."""
        ...

    async def wait_ended(self) -> None:
        """Return when the connection has ended."""
        ...

    async def definitions(self, *, allowed: frozenset[str]) -> list[Definition]:
        """What the server offers; of these only those that are allowed, if any are named."""
        ...

    async def wait_changed(self) -> None:
        """Return when the server has said that what it offers has changed, since this was last called."""
        ...

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        ask: Ask | None = None,
        kind: Kind = "tool",
        sample: Sample | None = None,
    ) -> Answer:
        """
        Call a tool. What the server wants to know meanwhile is asked by ``ask``, and what it wants a model to
        say by ``sample``; without them, it is declined.

        Raises:
            ServerError: The server has refused it.
            ServerLost: The connection ended meanwhile.
        """
        ...
