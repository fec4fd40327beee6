"""
A server can find two names that become the same for a model. The first was used. When its definition changed it was
off, and the second took its place: a grant for the one, and what its receipts name, was for the other.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session
from agent_core.tools.effects import Effect
from agent_core.tools.mcp.definitions import Definition, Pins, definition_from, model_name
from agent_core.tools.mcp.servers import McpServers
from tests.clock import ManualClock

READ, PAY = "read!!??!?!!!???!????????", "read!!!???!?!?!?!????????"
HASHED = "a_-242ed5"
OWNER = Session(SessionKey("matrix", "!room:hs.test"), MemoryScope(ScopeKind.OWNER))


def tool(name: str, description: str = "Does it.") -> Definition:
    found = definition_from(name, description, {"type": "object", "properties": {}})
    assert found is not None
    return found


async def keep(*_: object) -> str | None:
    return None


def offered(pins: Pins) -> list[str]:
    server: Any = SimpleNamespace(
        name="s",
        pins=pins,
        call=None,
        effect_of=lambda _: Effect.NETWORK_SEND,
        settings=SimpleNamespace(allow="owner", tools=(), trust="untrusted", timeout_s=1, start_s=1),
    )
    servers = object.__new__(McpServers)
    servers.by_name = {"s": server}
    servers._clock = ManualClock()
    return [each._tool for each in servers.tools(OWNER, keep)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("one", "other"), [(READ, PAY), ("a!", HASHED)])
def test_no_tool_takes_the_place_of_another(one: str, other: str) -> None:
    """The controls: the first one, and tools of different names."""
    assert model_name("s", one) == model_name("s", other)
    first, second = sorted([one, other])
    pins = Pins("s").update([tool(one), tool(other), tool("echo")])
    pins = pins.mark_shown(pins.changes()).with_approval()
    assert sorted(offered(pins)) == sorted([first, "echo"])
    assert offered(pins.update([tool(first, "Now it pays."), tool(second), tool("echo")])) == ["echo"]
    assert offered(pins.update([tool(second), tool("echo")])) == ["echo"]
