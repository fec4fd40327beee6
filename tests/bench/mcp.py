"""What a call of a tool of an MCP server costs over the SDK's own call of it, on standard streams."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import anyio

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session, ToolCall
from agent_core.provenance import Origins
from agent_core.tools.execution import ToolRunner
from agent_core.tools.mcp.config import McpSettings
from agent_core.tools.mcp.servers import McpServers
from gateway.cli.output import quiet_logs
from gateway.system.clock import SystemClock
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal, median

_SERVER = [str(Path(__file__).resolve().parents[1] / "hostile_mcp.py"), "honest"]
_OWNER = Session(SessionKey("matrix", "!room:bench"), MemoryScope(ScopeKind.OWNER))


def measure(rig: Rig) -> list[Figure]:
    """A call by the runner of a turn, in turns with the SDK's own, each with a server of its own."""
    count = 30 if rig.quick else 300
    quiet_logs(verbose=False)
    with tempfile.TemporaryDirectory(prefix="squidbot-bench-") as folder:
        ours, bare = anyio.run(_measure, Path(folder), count)
    floor = "the SDK's own call, by its own streams"
    return [
        Figure(
            "MCP call over the SDK's own", ours - bare, "ms", Goal("<", 5), bare, floor, f"median of {count}"
        )
    ]


async def _measure(folder: Path, count: int) -> tuple[float, float]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    settings = {"servers": {"bench": {"command": sys.executable, "args": _SERVER, "effects": {"*": "read"}}}}
    servers = McpServers(McpSettings.model_validate(settings), folder / "mcp", SystemClock())
    ours: list[float] = []
    bare: list[float] = []
    async with (
        anyio.create_task_group() as tasks,
        stdio_client(StdioServerParameters(command=sys.executable, args=_SERVER)) as streams,
        ClientSession(*streams) as session,
    ):
        await session.initialize()
        tasks.start_soon(servers.run)
        server = servers.by_name["bench"]
        await server.refresh()
        await server.show_changes()
        await server.approve([])
        tools = {tool.name: tool for tool in servers.tools(_OWNER, _keep)}
        runner = ToolRunner(tools, seconds=60, result_chars=16_000)
        for number in range(count + 1):
            text = f"number {number}"
            for mine in (True, False) if number % 2 else (False, True):
                began = time.perf_counter()
                if mine:
                    call = ToolCall(id=f"c{number}", name="bench__echo", arguments={"text": text})
                    said = (await runner.run(call)).content
                else:
                    said = str((await session.call_tool("echo", {"text": text})).content)
                took = time.perf_counter() - began
                assert text in said
                if number:  # the first starts the server
                    (ours if mine else bare).append(took)
        tasks.cancel_scope.cancel()
    return median(ours) * 1000, median(bare) * 1000


async def _keep(_name: str, _content: bytes, _origins: Origins) -> str | None:
    return None
