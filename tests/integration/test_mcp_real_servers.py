"""Servers from the registries: both eras of the protocol, through the whole gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session
from agent_core.tools.effects import Effect
from agent_core.tools.mcp.config import McpSettings
from agent_core.tools.mcp.servers import McpServers
from gateway.system.clock import SystemClock
from tests.command_line import free_port

pytestmark = pytest.mark.integration
BIN = Path(sys.executable).parent
OWNER = Session(SessionKey("matrix", "!room:hs.test"), MemoryScope(ScopeKind.OWNER))
PERSON = Session(SessionKey("matrix", "!other:hs.test"), MemoryScope(ScopeKind.PERSON, "@bob:hs.test"))


def installed(name):
    """A server from our own environment, the path, or a folder (or several) in SQUIDBOT_MCP_BIN."""
    found = shutil.which(
        name, path=os.pathsep.join([str(BIN), os.environ.get("SQUIDBOT_MCP_BIN", ""), os.environ["PATH"]])
    )
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.test"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "a.txt").write_text("one\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "The first of all"], check=True)
    return folder


async def keep(name, content, origins):
    return f"mcp/{name}"


async def tools_of(tmp_path, tasks, server, session=OWNER):
    found = McpServers(
        McpSettings.model_validate({"servers": {"one": server}}), tmp_path / "mcp", SystemClock()
    )
    tasks.start_soon(found.run)
    with anyio.fail_after(60):
        while not found.by_name["one"].is_listed:
            await anyio.sleep(0.02)
    await found.by_name["one"].show_changes()
    await found.by_name["one"].approve([])
    return found, {tool.name: tool for tool in found.tools(session, keep)}


async def test_the_server_of_time(tmp_path):
    """PyPI, the era of 2026-07-28."""
    server = {"command": installed("mcp-server-time"), "effects": {"get_current_time": "read"}}
    async with anyio.create_task_group() as tasks:
        found, tools = await tools_of(tmp_path, tasks, server)
        assert set(tools) == {"one__get_current_time", "one__convert_time"}
        known, unknown = tools["one__get_current_time"], tools["one__convert_time"]
        assert (known.effect, known.needs_approval, known.repeatable) == (Effect.READ, False, True)
        assert (unknown.effect, unknown.needs_approval, unknown.repeatable) == (Effect.EXECUTE, True, False)
        result = await known.execute(timezone="Europe/Berlin")
        assert "Europe/Berlin" in result.content
        assert [(each.kind, each.where) for each in result.origins] == [("mcp", "one")]
        refused = await known.execute(timezone="No/Where")
        assert refused.is_error and not refused.is_unknown
        assert found.tools(PERSON, keep) == []
        tasks.cancel_scope.cancel()


async def test_the_server_of_git(tmp_path, repository):
    """PyPI; of its twelve tools those that the settings name."""
    server = {
        "command": installed("mcp-server-git"),
        "args": ["--repository", str(repository)],
        "tools": ["git_log", "git_status"],
        "trust": "own",
        "allow": "people",
    }
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, server, PERSON)
        assert set(tools) == {"one__git_log", "one__git_status"}
        result = await tools["one__git_log"].execute(repo_path=str(repository))
        assert "The first of all" in result.content
        assert result.origins == ()
        tasks.cancel_scope.cancel()


async def test_the_server_of_everything(tmp_path):
    """npm, the era of 2025-11-25: pictures, links that are not followed, errors."""
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, {"command": installed("mcp-server-everything")})
        assert {"one__echo", "one__get-tiny-image", "one__get-resource-links"} <= set(tools)
        assert "hello" in (await tools["one__echo"].execute(message="hello")).content
        picture = (await tools["one__get-tiny-image"].execute()).content
        assert "'mcp/one.png'" in picture
        links = (await tools["one__get-resource-links"].execute(count=3)).content
        assert links.count("not followed") == 3
        assert "42" in (await tools["one__get-sum"].execute(a=40, b=2)).content
        tasks.cancel_scope.cancel()


async def test_the_server_of_sqlite(tmp_path):
    """PyPI: a table is made, filled and read; an error of the database is one of the call."""
    server = {"command": installed("mcp-server-sqlite"), "args": ["--db-path", str(tmp_path / "x.db")]}
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, server)
        await tools["one__create_table"].execute(query="CREATE TABLE pens (name TEXT)")
        await tools["one__write_query"].execute(query="INSERT INTO pens VALUES ('blue')")
        assert "blue" in (await tools["one__read_query"].execute(query="SELECT * FROM pens")).content
        assert "no such table" in (await tools["one__read_query"].execute(query="SELECT * FROM x")).content
        tasks.cancel_scope.cancel()


async def test_the_server_of_pages(tmp_path):
    """PyPI: a page is fetched, and null stands for what was left out."""
    command = installed("mcp-server-fetch")  # before anything is opened: it may skip

    async def page(_):
        return web.Response(text="<h1>Squids</h1><p>They have ten arms.</p>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/page", page)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    server = {
        "command": command,
        "args": ["--ignore-robots-txt", "--allow-private-ips"],
    }
    try:
        async with anyio.create_task_group() as tasks:
            _, tools = await tools_of(tmp_path, tasks, server)
            url = f"http://127.0.0.1:{port}/page"
            fetched = await tools["one__fetch"].execute(url=url, max_length=None, raw="false")
            assert "ten arms" in fetched.content
            assert [each.kind for each in fetched.origins] == ["mcp"]
            tasks.cancel_scope.cancel()
    finally:
        await runner.cleanup()


async def test_the_server_of_files(tmp_path):
    """npm: a file is written and read; its text is there once, although the result has it twice."""
    (folder := tmp_path / "files").mkdir()
    async with anyio.create_task_group() as tasks:
        server = {"command": installed("mcp-server-filesystem"), "args": [str(folder)]}
        _, tools = await tools_of(tmp_path, tasks, server)
        path = str(folder / "note.txt")
        await tools["one__write_file"].execute(path=path, content="ten arms")
        read = await tools["one__read_text_file"].execute(path=path, head=None, tail="1")
        assert read.content.count("ten arms") == 1
        refused = await tools["one__read_text_file"].execute(path="/etc/passwd")
        assert refused.is_error and "denied" in refused.content
        tasks.cancel_scope.cancel()


async def test_the_server_of_notes(tmp_path):
    """npm: what was noted is found."""
    async with anyio.create_task_group() as tasks:
        server = {"command": installed("mcp-server-memory"), "env": {"MEMORY_FILE_PATH": str(tmp_path / "m")}}
        _, tools = await tools_of(tmp_path, tasks, server)
        squid = {"name": "squid", "entityType": "animal", "observations": ["has ten arms"]}
        await tools["one__create_entities"].execute(entities=[squid])
        assert "ten arms" in (await tools["one__search_nodes"].execute(query="squid")).content
        tasks.cancel_scope.cancel()
