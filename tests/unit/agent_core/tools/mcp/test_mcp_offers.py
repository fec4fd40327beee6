"""What a server offers besides tools: what it answers wrong is nothing, what it does not answer is no list."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("mcp")

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from agent_core.tools.mcp.offers import list_offers

RESOURCES = types.ListResourcesResult(resources=[types.Resource(uri="file:///a", name="a")])
TEMPLATES = types.ListResourceTemplatesResult(resource_templates=[])
PROMPTS = types.ListPromptsResult(prompts=[types.Prompt(name="greet")])


class Session:
    """Answers with what it is given, or raises that."""

    def __init__(self, resources=RESOURCES, templates=TEMPLATES, prompts=PROMPTS):
        self.server_capabilities = SimpleNamespace(resources=True, prompts=True)
        self._answers = {"resources": resources, "resource_templates": templates, "prompts": prompts}

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
    return [each.name for each in await list_offers(Session(**answers))]


async def test_what_is_answered_wrong_is_nothing_and_costs_nothing_else():
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


@pytest.mark.parametrize("which", ["resources", "templates", "prompts"])
async def test_a_connection_that_ends_is_no_answer(which):
    """It would look as if the server had taken them back."""
    with pytest.raises(MCPError):
        await names(**{which: MCPError(types.CONNECTION_CLOSED, "Connection closed")})
