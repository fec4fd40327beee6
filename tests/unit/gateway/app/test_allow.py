"""For whom each family of tools is there: what is not allowed cannot even be called."""

from __future__ import annotations

from typing import get_args

import pytest

from agent_core.children.command_sandbox import CommandSandbox, Proof
from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session
from agent_core.tools.mcp.definitions import Definition, Pins
from agent_core.tools.mcp.servers import McpServer
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.settings.settings import ToolSettings
from gateway.system.home import open_home
from tests.clock import EPOCH
from tests.doubles.loopback import LoopbackChannel, LoopbackServer

ANN = "@ann:hs.test"
SESSIONS = {
    "owner": Session(SessionKey("matrix", "!own:hs.test"), MemoryScope(ScopeKind.OWNER), turn="t1"),
    "person": Session(
        SessionKey("matrix", "!bob:hs.test"), MemoryScope(ScopeKind.PERSON, "@bob:hs.test"), turn="t2"
    ),
    "room": Session(
        SessionKey("matrix", "!room:hs.test"), MemoryScope(ScopeKind.ROOM, "!room:hs.test"), turn="t3"
    ),
}
ALWAYS = {"memory_write", "read_attachment", "schedule", "search_history", "send_file"}
FILES = {
    *("delete_file", "edit_file", "list_files", "move_file", "read_file", "search_files"),
    "write_file",
}
_DAV = {"url": "https://dav.example/", "username": "ann", "password": "pw"}
FAMILIES = {
    "dav": (_DAV, {"calendar", "contacts", "tasks"}),
    "files": ({}, FILES),
    "image": ({"provider": "pics", "model": "openai/dall-e-9"}, {"image"}),
    "jobs": ({}, {"job_output", "jobs", "start_job", "stop_job"}),
    "shell": ({}, {"shell"}),
    "web": ({"search": {"provider": "searxng", "url": "https://s.example/"}}, {"web_fetch", "web_search"}),
}
"""What each family needs besides ``allow``, and its tools."""
WHERE = {
    ("dav", "people"): {"owner", "person"},
    ("files", "people"): {"owner", "person"},
    ("jobs", "people"): {"owner", "person", "room"},
    ("web", "people"): {"owner", "person", "room"},
}


def families():
    return {
        name
        for name, field in ToolSettings.model_fields.items()
        if any(
            "allow" in getattr(kind, "model_fields", ())
            for kind in (field.annotation, *get_args(field.annotation))
        )
    }


async def offered(root, tools, **more):
    """The names of the tools that each conversation has."""
    found = {}
    wanted = Settings.model_validate(
        {
            "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
            "llm": {
                "providers": {"pics": {"api_base": "https://pics.example/v1"}},
                "models": {"demo": {"model": "demo/demo"}},
                "pools": {"main": ["demo"]},
                "default_pool": "main",
            },
            "tools": tools,
            **more,
        }
    )
    server = LoopbackServer()
    channels = {"matrix": (LoopbackChannel(server, name="matrix"), "each")}
    built = await build(wanted, open_home(root), Overrides(channels=channels, allow_from={"matrix": ("*",)}))
    try:
        for name, session in SESSIONS.items():
            address = ANN if name == "owner" else "@bob:hs.test"
            message = InboundMessage(
                channel="matrix",
                account="bot",
                native_id="m1",
                session=session.key,
                sender=Sender(address=address, verified=True),
                text="hello",
                received_at=EPOCH,
            )
            found[name] = {tool.name for tool in await built.handler.model.extra_tools(session, [message])}
    finally:
        await built.store.aclose()
    return found


@pytest.fixture(autouse=True)
def _sandbox(monkeypatch):
    """A machine on which a sandbox was proved."""
    real = CommandSandbox.__init__

    def proved(self, folders, **given):
        real(self, folders, **given)
        self.proof = Proof(True, "it holds")

    monkeypatch.setattr(CommandSandbox, "__init__", proved)


def test_every_family_is_looked_at_here():
    assert families() == set(FAMILIES)


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_none_is_for_nobody(tmp_path, family):
    more, tools = FAMILIES[family]
    for names in (await offered(tmp_path, {family: {**more, "allow": "none"}})).values():
        assert not names & tools


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_owner_is_where_the_owner_alone_reads(tmp_path, family):
    more, tools = FAMILIES[family]
    found = await offered(tmp_path, {family: {**more, "allow": "owner"}})
    assert tools <= found["owner"]
    assert not tools & (found["person"] | found["room"])


@pytest.mark.parametrize(("family", "allow"), sorted(WHERE))
async def test_people_are_those_whom_the_family_is_for(tmp_path, family, allow):
    more, tools = FAMILIES[family]
    found = await offered(tmp_path, {family: {**more, "allow": allow}})
    assert {name for name, names in found.items() if tools <= names} == WHERE[family, allow]
    assert {name for name, names in found.items() if tools & names} == WHERE[family, allow]


@pytest.mark.parametrize(
    ("allow", "where"), [("none", set()), ("owner", {"owner"}), ("people", {"owner", "person", "room"})]
)
async def test_each_server_says_for_whom_it_is(tmp_path, monkeypatch, allow, where):
    """MCP: one server is allowed, the other one is not."""
    known = {"look": Definition("look", "Looks.", {"type": "object"}, "d1")}
    monkeypatch.setattr(McpServer, "_loaded", lambda *_: Pins("", known, known))
    servers = {
        "one": {"command": "/bin/true", "allow": allow},
        "two": {"command": "/bin/true", "allow": "none"},
    }
    found = await offered(tmp_path, {}, mcp={"servers": servers})
    assert {name for name, names in found.items() if "one__look" in names} == where
    assert not any("two__look" in names for names in found.values())


async def test_what_has_no_family_is_for_everybody(tmp_path):
    """Each with what is theirs alone: memory, history, files that were sent, jobs. Only the owner writes elsewhere."""
    none = {name: {**FAMILIES[name][0], "allow": "none"} for name in FAMILIES}
    found = await offered(tmp_path, none)
    assert found.pop("owner") == ALWAYS | {"send_message"}
    assert found and all(names == ALWAYS for names in found.values())


def test_the_shell_is_nobodys_but_the_owners():
    with pytest.raises(ValueError, match="allow"):
        ToolSettings.model_validate({"shell": {"allow": "people"}})
