"""Parses the names in requests: sessions, memory scopes, states, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import GatewayError
from gateway.store.states import InboxState

if TYPE_CHECKING:
    from agent_core.messages import SessionKey
    from agent_core.models import MemoryScope

_MOST = 1000


class RequestInvalid(GatewayError):
    """The request is not valid."""

    exit_code = 2


def parse_scope(text: str) -> MemoryScope:
    """Parse ``owner``, ``person:ADDRESS`` or ``room:SESSION``. Raises RequestInvalid."""
    from agent_core.memory.scopes import OWNER
    from agent_core.models import MemoryScope, ScopeKind

    kind, _, name = text.partition(":")
    if text == "owner":
        return OWNER
    if kind == "person" and name:
        return MemoryScope(ScopeKind.PERSON, name)
    if kind == "room" and name:
        return MemoryScope(ScopeKind.ROOM, str(parse_session(name)))
    raise RequestInvalid(f"{text!r} does not name a memory; write owner, person:ADDRESS or room:SESSION")


def show_scope(scope: MemoryScope) -> str:
    """The inverse of `parse_scope`."""
    return f"{scope.kind.value}:{scope.name}" if scope.name else scope.kind.value


def parse_session(text: str) -> SessionKey:
    """Parse the name of a session."""
    from agent_core.messages import SessionKey

    try:
        return SessionKey.parse(text)
    except ValueError as error:
        raise RequestInvalid(
            f"{text!r} is not a session; `squidbot sessions list` lists the sessions"
        ) from error


def parse_state(text: str) -> InboxState:
    """Parse a state of a message."""
    try:
        return InboxState(text)
    except ValueError as error:
        known = ", ".join(state.value for state in InboxState)
        raise RequestInvalid(f"there is no state {text!r}; known: {known}") from error


def capped_limit(limit: int) -> int:
    """Check a limit, and cap it at a thousand."""
    if limit < 1:
        raise RequestInvalid(f"the limit must be 1 or more, not {limit}")
    return min(limit, _MOST)
