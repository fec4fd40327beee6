"""
Servers from the registries, as people run them: both eras of the protocol, one task for each.

What PyPI has in versions that squidbot does not want, and what npm has, is installed at first use.
"""

from __future__ import annotations

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
from devservers.environment import prepare_tools
from gateway.system.clock import SystemClock
from tests.command_line import free_port
from tests.npm_packages import NodeMissing, install_packages, node_program
from tests.servers import skipped_without_tools

pytestmark = pytest.mark.integration
BIN = Path(sys.executable).parent
OWNER = Session(SessionKey("matrix", "!room:hs.test"), MemoryScope(ScopeKind.OWNER))
PERSON = Session(SessionKey("matrix", "!other:hs.test"), MemoryScope(ScopeKind.PERSON, "@bob:hs.test"))


# The versions that these tests were written against; npm has no lock file for a handful of tools.
NPM = (
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
    "@playwright/mcp@0.0.83",
)


@pytest.fixture(scope="module")
def pypi():
    """The folder of programs of the servers that need an environment of their own."""
    with skipped_without_tools():
        return prepare_tools("mcp", say=print).parent


@pytest.fixture(scope="module")
def npm():
    """Make the settings of a server of npm from its program's name and arguments."""
    try:
        modules = install_packages("mcp", *NPM)
    except NodeMissing as missing:
        pytest.skip(str(missing))

    def settings(program, *arguments, **more):
        script = str((modules / ".bin" / program).resolve())
        return {"command": str(node_program(modules)), "args": [script, *arguments], **more}

    return settings


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
    server = {"command": str(BIN / "mcp-server-time"), "effects": {"get_current_time": "read"}}
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
        "command": str(BIN / "mcp-server-git"),
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


async def test_the_server_of_everything(tmp_path, npm):
    """npm, the era of 2025-11-25: pictures, links that are not followed, errors."""
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, npm("mcp-server-everything"))
        assert {"one__echo", "one__get-tiny-image", "one__get-resource-links"} <= set(tools)
        assert "hello" in (await tools["one__echo"].execute(message="hello")).content
        picture = (await tools["one__get-tiny-image"].execute()).content
        assert "'mcp/one.png'" in picture
        links = (await tools["one__get-resource-links"].execute(count=3)).content
        assert links.count("not followed") == 3
        assert "42" in (await tools["one__get-sum"].execute(a=40, b=2)).content
        tasks.cancel_scope.cancel()


async def test_the_server_of_sqlite(tmp_path, pypi):
    """PyPI: a table is made, filled and read; an error of the database is one of the call."""
    server = {"command": str(pypi / "mcp-server-sqlite"), "args": ["--db-path", str(tmp_path / "x.db")]}
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, server)
        await tools["one__create_table"].execute(query="CREATE TABLE pens (name TEXT)")
        await tools["one__write_query"].execute(query="INSERT INTO pens VALUES ('blue')")
        assert "blue" in (await tools["one__read_query"].execute(query="SELECT * FROM pens")).content
        assert "no such table" in (await tools["one__read_query"].execute(query="SELECT * FROM x")).content
        tasks.cancel_scope.cancel()


@pytest.fixture
async def page():
    """The address of a small page on this machine."""

    async def show(_):
        text = "<title>Squids</title><h1>Squids</h1><p>They have ten arms.</p>"
        return web.Response(text=text, content_type="text/html")

    app = web.Application()
    app.router.add_get("/page", show)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f"http://127.0.0.1:{port}/page"
    await runner.cleanup()


async def test_the_server_of_pages(tmp_path, pypi, page):
    """PyPI: a page is fetched, and null stands for what was left out."""
    server = {
        "command": str(pypi / "mcp-server-fetch"),
        "args": ["--ignore-robots-txt", "--allow-private-ips"],
    }
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, server)
        fetched = await tools["one__fetch"].execute(url=page, max_length=None, raw="false")
        assert "ten arms" in fetched.content
        assert [each.kind for each in fetched.origins] == ["mcp"]
        tasks.cancel_scope.cancel()


async def test_the_server_of_a_browser(tmp_path, npm, page):
    """npm: a page is opened in Chromium where there is one, otherwise the answer says what is missing."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    flags = ["--headless", "--isolated", "--no-sandbox", "--output-dir", str(tmp_path / "output")]
    server = npm("playwright-mcp", *flags, "--executable-path", browser or str(tmp_path / "chromium"))
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, server)
        opened = await tools["one__browser_navigate"].execute(url=page)
        if browser:
            seen = await tools["one__browser_snapshot"].execute()
            assert "ten arms" in seen.content
        else:
            assert opened.is_error and "chromium" in opened.content
        tasks.cancel_scope.cancel()


async def test_the_server_of_thoughts(tmp_path, npm):
    """npm: numbers and truth values that a model wrote as text arrive as what they are."""
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, npm("mcp-server-sequential-thinking"))
        thought = {
            "thought": "Ten arms.",
            "nextThoughtNeeded": "false",
            "thoughtNumber": "1",
            "totalThoughts": "1",
        }
        done = await tools["one__sequentialthinking"].execute(**thought)
        assert not done.is_error and '"thoughtNumber": 1' in done.content
        tasks.cancel_scope.cancel()


async def test_the_server_of_files(tmp_path, npm):
    """npm: a file is written and read; its text is there once, although the result has it twice."""
    (folder := tmp_path / "files").mkdir()
    async with anyio.create_task_group() as tasks:
        _, tools = await tools_of(tmp_path, tasks, npm("mcp-server-filesystem", str(folder)))
        path = str(folder / "note.txt")
        await tools["one__write_file"].execute(path=path, content="ten arms")
        read = await tools["one__read_text_file"].execute(path=path, head=None, tail="1")
        assert read.content.count("ten arms") == 1
        refused = await tools["one__read_text_file"].execute(path="/etc/passwd")
        assert refused.is_error and "denied" in refused.content
        tasks.cancel_scope.cancel()


async def test_the_server_of_notes(tmp_path, npm):
    """npm: what was noted is found."""
    async with anyio.create_task_group() as tasks:
        server = npm("mcp-server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "m")})
        _, tools = await tools_of(tmp_path, tasks, server)
        squid = {"name": "squid", "entityType": "animal", "observations": ["has ten arms"]}
        await tools["one__create_entities"].execute(entities=[squid])
        assert "ten arms" in (await tools["one__search_nodes"].execute(query="squid")).content
        tasks.cancel_scope.cancel()
