"""A question in the newest form of the protocol, of a server that is made with the official SDK, gets to the person of the call, and its answer back."""

from __future__ import annotations

import sys

import anyio
import pytest

from agent_core.tools.person_port import FormReply, person_of_turn
from tests.integration.test_mcp_hostile import OWNER, keep, servers

pytestmark = pytest.mark.integration
_SERVER = """
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent
server = MCPServer("real")
@server.tool()
async def book(ctx: Context) -> CallToolResult | InputRequiredResult:
    "Books."
    if ctx.input_responses is None:
        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        wish = ElicitRequest(params=ElicitRequestFormParams(message="Where to?", requested_schema=schema))
        return InputRequiredResult(input_requests={"where": wish}, request_state="half-way")
    got = ctx.input_responses["where"]
    text = f"{got.action} {got.content} {ctx.request_state}"
    return CallToolResult(content=[TextContent(type="text", text=text)])
server.run()
"""


class Person:
    """Answers, and keeps what was asked."""

    def __init__(self):
        self.asked = []

    async def fill_in(self, form, *, seconds):
        self.asked.append((form.asker, form.message, [field.name for field in form.fields], seconds > 0))
        return FormReply("accept", {"city": "Berlin"})


async def test_an_answer_gets_to_a_real_server(tmp_path):
    """Without a person, as in a command of the terminal, it is declined."""
    pytest.importorskip("mcp")
    person = Person()
    async with servers(tmp_path, real={"command": sys.executable, "args": ["-c", _SERVER]}) as found:
        (tool,) = found.tools(OWNER, keep)
        with person_of_turn(person):
            assert "accept {'city': 'Berlin'} half-way" in (await tool.execute()).content
        assert person.asked == [("real", "Where to?", ["city"], True)]
        alone = (await tool.execute()).content
        assert "declined: there is nobody to ask" in alone
        assert "decline None half-way" in alone


_OLDER = """
import asyncio
from pydantic import BaseModel
from mcp.server.mcpserver import Context, MCPServer
server = MCPServer("real")
class Where(BaseModel):
    city: str
@server.tool()
async def book(ctx: Context) -> str:
    "Books."
    got = await ctx.elicit("Where to?", Where)
    return f"{got.action} {getattr(got, 'data', None)}"
@server.tool()
async def wait() -> str:
    "Takes a while."
    await asyncio.sleep(2)
    return "waited"
server.run()
"""


async def test_a_server_that_asks_by_a_request_of_its_own_can_from_its_second_call_on(tmp_path):
    """
    Most servers are written so; the newer form of the protocol, tried first, has no way for it.

    The first call is not repeated by itself, and what else is in flight is not lost.
    """
    pytest.importorskip("mcp")
    person = Person()
    async with servers(tmp_path, real={"command": sys.executable, "args": ["-c", _OLDER]}) as found:
        tools = {tool.name.rpartition("__")[2]: tool for tool in found.tools(OWNER, keep)}
        slow = []

        async def wait():
            slow.append(await tools["wait"].execute())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            with person_of_turn(person):
                first = await tools["book"].execute()
        assert first.is_error
        assert not first.is_unknown
        assert "wanted to ask the person something" in first.content
        assert "waited" in slow[0].content
        with person_of_turn(person):
            assert "accept city='Berlin'" in (await tools["book"].execute()).content
        assert [asker for asker, *_ in person.asked] == ["real"]
        alone = (await tools["book"].execute()).content
        assert "declined: there is nobody to ask" in alone


_LEAVES = """
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, CreateMessageRequest, CreateMessageRequestParams, ElicitRequest
from mcp_types import ElicitRequestFormParams, InputRequiredResult
server = MCPServer("real")
@server.tool()
async def again(ctx: Context) -> CallToolResult | InputRequiredResult:
    "Asks for ever."
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    wish = ElicitRequest(params=ElicitRequestFormParams(message="Where to?", requested_schema=schema))
    return InputRequiredResult(input_requests={"where": wish}, request_state="again")
@server.tool()
async def think(ctx: Context) -> CallToolResult | InputRequiredResult:
    "Wants a model."
    wish = CreateMessageRequest(params=CreateMessageRequestParams(messages=[], max_tokens=9))
    return InputRequiredResult(input_requests={"thought": wish}, request_state="x")
server.run()
"""


@pytest.mark.parametrize(("name", "said"), [("again", "keeps asking"), ("think", "wants to use a model")])
async def test_a_call_that_is_left_in_the_middle_is_unknown(tmp_path, name, said):
    """What the server has done before it asked is not known."""
    pytest.importorskip("mcp")
    async with servers(tmp_path, real={"command": sys.executable, "args": ["-c", _LEAVES]}) as found:
        tool = next(each for each in found.tools(OWNER, keep) if each.name.endswith(name))
        with person_of_turn(Person()):
            result = await tool.execute()
        assert result.is_unknown
        assert said in result.content
