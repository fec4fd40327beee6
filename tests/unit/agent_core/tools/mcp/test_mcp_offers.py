"""What a server offers besides tools: what it answers wrong is nothing, what it does not answer is no list."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter


class Session:
    """Answers with what it is given, or raises that."""

    def __init__(self, **answers):
        import mcp_types as types

        self.server_capabilities = SimpleNamespace(resources=True, prompts=True)
        offers = {
            "resources": types.ListResourcesResult(resources=[types.Resource(uri="file:///a", name="a")]),
            "templates": types.ListResourceTemplatesResult(resource_templates=[]),
            "prompts": types.ListPromptsResult(prompts=[types.Prompt(name="greet")]),
        } | answers
        self._answers = {**offers, "resource_templates": offers["templates"]}

    def __getattr__(self, name):
        async def answer(**_):
            found = self._answers[name.removeprefix("list_")]
            if isinstance(found, Exception):
                raise found
            return found

        return answer


def invalid():
    try:
        TypeAdapter(int).validate_python("x")
    except ValueError as error:
        return error


async def names(**answers):
    from agent_core.tools.mcp.offers import list_offers

    return [each.name for each in await list_offers(Session(**answers))]


async def test_what_is_answered_wrong_is_nothing_and_costs_nothing_else():
    MCPError = pytest.importorskip("mcp.shared.exceptions").MCPError
    everything = ["list_resources", "read_resource", "get_prompt"]
    assert await names() == everything
    for error in (
        MCPError(-32601, "no such method"),
        MCPError(-32603, "broken"),
        invalid(),
        RuntimeError("odd"),
    ):
        assert await names(templates=error) == everything
        assert await names(prompts=error) == everything[:2]
        assert await names(resources=error) == everything[2:]


async def test_a_connection_that_ends_is_no_answer():
    """It would look as if the server had taken them back."""
    types, error = pytest.importorskip("mcp_types"), pytest.importorskip("mcp.shared.exceptions").MCPError
    for which in ("resources", "templates", "prompts"):
        with pytest.raises(error):
            await names(**{which: error(types.CONNECTION_CLOSED, "Connection closed")})
