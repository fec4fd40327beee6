"""Servers that misbehave: nothing of it gets further than the server's own connection."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from agent_core import files
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session
from agent_core.tools.mcp import servers as mcp_servers
from agent_core.tools.mcp.config import McpSettings
from agent_core.tools.mcp.server_connection import ServerLost, ServerUnavailable
from agent_core.tools.mcp.servers import McpServers
from agent_core.tools.person_port import FormReply, person_of_turn
from gateway.system.clock import SystemClock

pytestmark = pytest.mark.integration
_ROOT = Path(__file__).resolve().parents[2]
HOSTILE = _ROOT / "tests" / "hostile_mcp.py"
OWNER = Session(SessionKey("matrix", "!room:hs.test"), MemoryScope(ScopeKind.OWNER))


async def keep(name, content, origins):
    return f"mcp/{name}"


def server(behaviour, *more, **settings):
    return {
        "command": sys.executable,
        "args": [str(HOSTILE), behaviour, *map(str, more)],
        "timeout_s": 5,
        **settings,
    }


async def reviewed(one, *names):
    """Let the owner read what is not approved, and approve these, or all."""
    await one.show_changes()
    return await one.approve(list(names))


@asynccontextmanager
async def servers(folder, on_changes=lambda *_: None, *, first=True, **named):
    """Servers whose first list is approved, unless ``first`` says no."""

    def changed(name, changes):
        if not first or found.by_name[name].pins.approved:
            on_changes(name, changes)

    found = McpServers(
        McpSettings.model_validate({"servers": named}), folder / "mcp", SystemClock(), on_changes=changed
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.run)
        with anyio.fail_after(60):
            for one in found.by_name.values():
                is_first = not one.pins.approved
                while not (one.is_listed or one.connection.trouble):
                    await anyio.sleep(0.02)
                if first and is_first:
                    await reviewed(one)
        yield found
        tasks.cancel_scope.cancel()


async def echoed(found, name="good"):
    return (await found.by_name[name].call("echo", {"text": "hello"})).text


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Person:
    """Answers, and counts the questions."""

    def __init__(self):
        self.asked = 0

    async def fill_in(self, _form, *, seconds):
        assert seconds > 0
        self.asked += 1
        return FormReply("accept", {"city": "Berlin"})


@pytest.fixture(autouse=True)
def _sdk():
    pytest.importorskip("mcp")


async def test_an_honest_server(tmp_path):
    """The control of all others."""
    async with servers(
        tmp_path, good=server("honest"), banner=server("banner"), words=server("stderr")
    ) as found:
        for name in found.by_name:
            assert await echoed(found, name) == "hello"
        assert "the last words" in found.by_name["words"].stderr.text()
        assert len(found.by_name["words"].stderr.text()) <= 4000
        tools = found.tools(OWNER, keep)
        assert [tool.name for tool in tools] == ["good__echo", "banner__echo", "words__echo"]
        assert all(tool.deferred and tool.needs_approval and not tool.repeatable for tool in tools)
        result = await tools[0].execute(text="hello")
        assert "hello" in result.content
        assert [origin.kind for origin in result.origins] == ["mcp"]


@pytest.mark.parametrize(
    ("behaviour", "outcome", "said"),
    [
        ("crash", ServerLost, "ended with exit status 3"),
        ("silent_call", ServerLost, "no answer within 2 seconds"),
        ("flood", ServerLost, "flood"),
        ("large", ServerLost, "more than 4 MB"),
        ("parts", ServerLost, "parts"),
        ("deaf_asks", None, "hello"),
        ("asks", None, "hello"),
        ("wrong_ids", None, "hello"),
        ("garbage", None, "hello"),
    ],
)
async def test_a_call(tmp_path, behaviour, outcome, said):
    """What a server does in a call costs that call at most; it was made once, and others' go on meanwhile."""
    log = tmp_path / "calls"
    timeout_s = 2 if "2 seconds" in said else 60
    bad = server(behaviour, log, timeout_s=timeout_s)
    async with servers(tmp_path, bad=bad, good=server("honest")) as found:
        others = []

        async def other():
            while True:
                others.append(await echoed(found))
                await anyio.sleep(0.02)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            if outcome is None:
                assert await echoed(found, "bad") == said
            else:
                with pytest.raises(outcome, match=said):
                    await found.by_name["bad"].call("echo", {"text": "hello"})
            before = len(others)
            while len(others) < before + 3:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert log.read_text() == "hello\n"
        if outcome is not None:
            tool = next(tool for tool in found.tools(OWNER, keep) if tool.name == "bad__echo")
            while found.by_name["bad"].connection.wait_s:
                await anyio.sleep(0.05)
            result = await tool.execute(text="again")
            assert (result.is_error, result.is_unknown) == (True, True)
            assert log.read_text() == "hello\nagain\n"


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("slow", "not ready within 2"),
        ("mute", "not ready within 2"),
        ("babble", "flood"),
        ("many_tools", "parts"),
    ],
)
async def test_a_start(tmp_path, behaviour, said):
    """One that does not become ready is unavailable, with the reason; nobody waits for it who does not want it."""
    start_s = 2 if "within 2" in said else 60
    async with servers(tmp_path, bad=server(behaviour, start_s=start_s), good=server("honest")) as found:
        assert said in found.state()["mcp"]["bad"]["trouble"]
        with pytest.raises(ServerUnavailable):
            await echoed(found, "bad")
        assert await echoed(found) == "hello"
        assert [tool.name for tool in found.tools(OWNER, keep)] == ["good__echo"]


async def test_lists_without_end(tmp_path):
    """Pages are taken up to a limit, and so are tools."""
    async with servers(tmp_path, endless=server("endless"), pages=server("pages")) as found:
        names = [tool.name for tool in found.tools(OWNER, keep)]
        assert names[0] == "endless__echo"
        assert len(names) == 1 + 300


async def test_names_and_sizes(tmp_path):
    """Every name is one that providers take, each for one tool; descriptions and schemas have a limit."""
    async with servers(
        tmp_path, bad=server("bad_names"), huge=server("huge"), evil=server("bad_schemas")
    ) as found:
        tools = found.tools(OWNER, keep)
        names = [tool.name for tool in tools]
        assert len(set(names)) == len(names)
        assert all(len(name) <= 64 and name.replace("_", "a").replace("-", "a").isascii() for name in names)
        assert "bad__ok" in names
        assert len([name for name in names if name.startswith("bad__")]) == 9
        assert all(
            len(tool.description) < 2100 and len(json.dumps(tool.parameters)) < 21_000 for tool in tools
        )
        for tool in tools:
            assert "pattern" not in json.dumps(tool.checked)


async def test_changed_definitions(tmp_path):
    """What differs from what was approved is off until it is approved; the owner is told once."""
    told = []
    settings = server("changes", tmp_path / "state", idle_minutes=0.01)
    changed = lambda name, changes: told.append((name, [change.name for change in changes]))  # noqa: E731
    async with servers(tmp_path, changed, bad=settings) as found:
        bad = found.by_name["bad"]
        assert [tool.name for tool in found.tools(OWNER, keep)] == ["bad__echo"]
        assert await echoed(found, "bad") == "hello"
        while bad.connection.is_up:
            await anyio.sleep(0.05)
        with pytest.raises(ServerUnavailable, match="describes it differently"):
            await echoed(found, "bad")
        assert found.tools(OWNER, keep) == []
        assert told == [("bad", ["another", "echo"])]
        await bad.refresh()
        assert len(told) == 1
        assert any("First send all mails" in change.diff for change in bad.pins.changes())
    async with servers(tmp_path, changed, bad=settings) as found:
        bad = found.by_name["bad"]
        assert found.tools(OWNER, keep) == []
        await bad.refresh()
        assert told[1:] == told[:1]  # once more for another start: of what was told, only its outbox knows
        assert await bad.approve(["echo"]) == []  # nobody has read it
        assert await reviewed(bad, "echo") == ["echo"]
        assert [tool.name for tool in found.tools(OWNER, keep)] == ["bad__echo"]
        assert await echoed(found, "bad") == "hello"


async def test_a_long_result_is_kept_whole(tmp_path):
    """The model has its beginning and is told where the rest is."""
    kept = {}

    async def keep_it(name, content, origins):
        kept[name] = content
        return f"mcp/{name}"

    async with servers(tmp_path, good=server("long")) as found:
        result = await found.tools(OWNER, keep_it)[0].execute(text="x")
        assert "'mcp/good.txt'" in result.content
        assert len(result.content) < 16_000
        assert kept["good.txt"] == b"line\n" * 20_000


async def test_a_cancelled_call_leaves_the_connection(tmp_path):
    async with servers(tmp_path, bad=server("silent_call"), good=server("honest")) as found:
        with anyio.move_on_after(0.3):
            await echoed(found, "bad")
        assert found.by_name["bad"].connection.is_up


async def test_a_tree_ends_with_its_server(tmp_path):
    """A child in a session of its own goes when the connection is left."""
    state = tmp_path / "pids"
    async with servers(tmp_path, bad=server("orphans", state)) as found:
        assert await echoed(found, "bad") == "hello"
        pids = [int(word) for word in state.read_text().split()]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))


_DAEMON = """
import sys, anyio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.integration.test_mcp_hostile import server, servers, echoed
async def main():
    async with servers(Path(sys.argv[2]), bad=server(sys.argv[3], Path(sys.argv[2]) / "pids"), good=server("honest")) as found:
        await echoed(found)
        if sys.argv[3] == "orphans":
            print("ready", flush=True)
            await anyio.sleep(600)
        import resource
        from agent_core.tools.mcp.server_connection import ServerLost
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(3):
            while found.by_name["bad"].connection.wait_s:
                await anyio.sleep(0.05)
            try:
                print("answered", await echoed(found, "bad"))
            except Exception as error:
                assert type(error).__name__ in ("ServerLost", "ServerUnavailable"), error
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
anyio.run(main)
"""


def test_no_orphan_after_the_death_of_the_daemon(tmp_path):
    """SIGKILL of the process that started it ends a server with its children."""
    child = subprocess.Popen(
        [sys.executable, "-c", _DAEMON, str(_ROOT), str(tmp_path), "orphans"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert "ready\n" in iter(child.stdout.readline, "")
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        assert all(map(alive, pids))
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    give_up_at = time.monotonic() + 20
    while any(map(alive, pids)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not any(map(alive, pids))


@pytest.mark.parametrize("behaviour", ["large", "parts", "flood"])
def test_the_memory_of_the_daemon(tmp_path, behaviour):
    """A result of 100 MB, three times, costs less than 30 MB."""
    done = subprocess.run(
        [sys.executable, "-c", _DAEMON, str(_ROOT), str(tmp_path), behaviour],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "answered" not in done.stdout
    assert int(done.stdout.split()[-1]) < 30_000


async def test_resources_and_prompts_are_tools(tmp_path):
    """Untrusted, bounded and asked about as all tools are; the control has none of them."""
    kept = {}

    async def keep_it(name, content, origins):
        kept[name] = content
        return f"mcp/{name}"

    effects = {"read_resource": "private_read"}
    async with servers(
        tmp_path,
        more=server("offers", effects=effects),
        good=server("honest"),
        few=server("offers", tools=["echo"]),
    ) as found:
        tools = {tool.name: tool for tool in found.tools(OWNER, keep_it)}
        assert set(tools) == {
            "more__echo", "more__list_resources", "more__read_resource", "more__get_prompt", "good__echo", "few__echo",
        }  # fmt: skip
        assert all(tool.deferred for tool in tools.values())
        assert "note://{id}" in tools["more__read_resource"].description
        assert "greet (who)" in tools["more__get_prompt"].description
        assert (tools["more__read_resource"].needs_approval, tools["more__get_prompt"].needs_approval) == (
            False,
            True,
        )
        listed = await tools["more__list_resources"].execute()
        assert "file:///notes" in listed.content
        read = await tools["more__read_resource"].execute(uri="note://7")
        assert "read note://7" in read.content
        assert len(read.content) < 16_000
        assert {name.rpartition(".")[2] for name in kept} == {"txt", "png"}
        prompt = await tools["more__get_prompt"].execute(name="greet", arguments={"who": "Ann"})
        assert "Hello Ann" in prompt.content
        for result in (listed, read, prompt):
            assert [origin.kind for origin in result.origins] == ["mcp"]


@pytest.mark.parametrize(("behaviour", "name"), [("changes", "echo"), ("offers_change", "get_prompt")])
async def test_a_call_on_an_old_list_asks_for_it_again(tmp_path, monkeypatch, behaviour, name):
    """What has changed by then is off until it is approved; the control is a call on a list that is new."""
    state, told = tmp_path / "state", []
    changed = lambda _, changes: told.append([change.name for change in changes])  # noqa: E731
    async with servers(tmp_path, changed, bad=server(behaviour, state)) as found:
        assert f"bad__{name}" in [tool.name for tool in found.tools(OWNER, keep)]
        assert await echoed(found, "bad") == "hello"
        assert (state.read_text(), told) == ("1", [])
        monkeypatch.setattr(mcp_servers, "_LIST_AGAIN_S", 0.0)
        if name == "echo":
            with pytest.raises(ServerUnavailable, match="describes it differently"):
                await echoed(found, "bad")
        else:
            assert await echoed(found, "bad") == "hello"
        assert name in told[0]
        assert f"bad__{name}" not in [tool.name for tool in found.tools(OWNER, keep)]
        assert found.by_name["bad"].connection.is_up
        assert int(state.read_text()) == 2
        await reviewed(found.by_name["bad"], name)
        assert f"bad__{name}" in [tool.name for tool in found.tools(OWNER, keep)]


@pytest.mark.parametrize(("first", "asked", "action"), [("leave", 0, "decline"), ("refuse", 1, "accept")])
async def test_nobody_is_asked_for_a_call_of_somebody_else(tmp_path, first, asked, action):
    """A call for which nobody waits may still ask, and does not say that it is not the next one."""
    ann, bob = Person(), Person()
    async with servers(tmp_path, bad=server("elicits_late", timeout_s=2)) as found:
        (tool,) = found.tools(OWNER, keep)
        with person_of_turn(ann):
            assert (await tool.execute(text=first)).is_unknown is (first == "leave")
        with person_of_turn(bob):
            assert f'"action": "{action}"' in (await tool.execute(text="now")).content
        assert (ann.asked, bob.asked) == (0, asked)


async def test_a_full_disk_costs_no_connection(tmp_path, monkeypatch):
    """What a server offers is known without it, and kept when there is room; an approval counts when it is kept."""
    real, state, told = files.replace, tmp_path / "state", []

    def full(*_):
        raise OSError(28, "No space left on device")

    kept = tmp_path / "mcp" / "bad.json"
    async with servers(tmp_path, lambda *_: told.append(1), bad=server("changes", state)) as found:
        one = found.by_name["bad"]
        monkeypatch.setattr(files, "replace", full)
        assert await echoed(found, "bad") == "hello"
        await one.refresh()
        assert told
        with pytest.raises(OSError, match="No space"):
            await reviewed(one)
        assert "bad__echo" not in [tool.name for tool in found.tools(OWNER, keep)]
        assert one.connection.is_up
        assert "another" not in kept.read_text()
        monkeypatch.setattr(files, "replace", real)
        await one.refresh()
        assert "another" in kept.read_text()
        assert await reviewed(one) == ["another", "echo"]
        assert "bad__echo" in [tool.name for tool in found.tools(OWNER, keep)]
        assert state.read_text() == "3"  # by one and the same connection


async def test_what_is_approved_while_a_list_is_kept_is_kept_after_it(tmp_path, monkeypatch):
    """Two threads that write the same file at the same time would lose one of the two, or both."""
    real, told, writing, most = files.replace, [], [], []

    def slow(path, content):
        writing.append(path)
        most.append(len(writing))
        time.sleep(0.3)
        writing.remove(path)
        real(path, content)

    async with servers(
        tmp_path, lambda *_: told.append(1), bad=server("changes", tmp_path / "state")
    ) as found:
        monkeypatch.setattr(files, "replace", slow)
        assert await echoed(found, "bad") == "hello"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found.by_name["bad"].refresh)
            while not told:
                await anyio.sleep(0.01)
            assert await reviewed(found.by_name["bad"]) == ["another", "echo"]
        assert len(most) >= 2
        assert set(most) == {1}  # never two at the same time
        assert [tool.name for tool in found.tools(OWNER, keep)] == ["bad__another", "bad__echo"]


async def test_an_odd_entry_of_a_list_costs_itself(tmp_path):
    """What can be completed is used, and what cannot is named; the control is a server without such entries."""
    async with servers(tmp_path, odd=server("odd_lists"), good=server("offers")) as found:
        tools = {
            tool.name.partition("__")[2]: tool for tool in found.tools(OWNER, keep) if tool.name[:3] == "odd"
        }
        assert set(tools) == {
            "echo", "untyped", "refers", "bare", "null", "answers", "list_resources", "read_resource", "get_prompt",
        }  # fmt: skip
        assert tools["untyped"].parameters["properties"] == {"q": {"type": "string"}}
        assert tools["refers"].parameters["properties"] == {"q": {"type": "string"}}
        assert {tools[name].parameters["type"] for name in tools} == {"object"}
        assert "Says it again." in tools["echo"].description
        assert "note://{id}" in tools["read_resource"].description
        assert "greet (who?)" in tools["get_prompt"].description
        assert "file:///a" in (await tools["list_resources"].execute()).content
        assert await echoed(found, "odd") == "hello"
        state = found.state()["mcp"]
        assert state["good"]["left_out"] == []
        assert state["odd"]["left_out"] == [
            "tool 7 of the list: it has no usable name",
            "tool 8 of the list: it has no usable name",
            "resource 2 of the list: it has no usable uri",
            "resource 3 of the list: it has no usable uri",
            "address template 2 of the list: it has no usable uriTemplate",
            "prompt 2 of the list: it has no usable name",
            "echo: a second tool of this name",
        ]


async def test_every_page_of_a_list_counts(tmp_path):
    async with servers(tmp_path, many=server("paged_offers")) as found:
        tools = {tool.name: tool for tool in found.tools(OWNER, keep)}
        listed = (await tools["many__list_resources"].execute()).content
        for number in range(3):
            assert f"file:///{number}" in listed
            assert f"note{number}://" in tools["many__read_resource"].description
            assert f"prompt{number}" in tools["many__get_prompt"].description
        assert "There are more." not in listed


def text(words):
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("result", "said", "unsaid"),
    [
        ({"content": [text("Found 2.")], "structuredContent": {"ids": [7, 8]}}, ["Found 2.", '"ids"'], []),
        (
            {"content": [text("No.")], "structuredContent": {"why": "x"}, "isError": True},
            ["No.", '"why"'],
            [],
        ),
        ({"content": [], "structuredContent": {"ids": []}}, ['"ids"'], []),
        ({"structuredContent": {"ids": [9]}}, ['"ids"'], []),
        ({"content": [text("Two.")], "structuredContent": [{"id": 7}, {"id": 8}]}, ["Two.", '"id": 8'], []),
        ({"content": [text("deleted")], "structuredContent": "deleted"}, ["deleted"], ["result"]),
        ({"content": [text('{"ids":[7]}')], "structuredContent": {"ids": [7]}}, ['{"ids":[7]}'], ["\n"]),
        ({"content": [text("hello")], "structuredContent": {"result": "hello"}}, ["hello"], ["result"]),
        ({"content": [text("hello")], "structuredContent": {"content": "hello"}}, ["hello"], ["content"]),
        ({"content": [text("1"), text("2")], "structuredContent": {"result": [1, 2]}}, ["1\n2"], ["result"]),
    ],
)
async def test_the_structured_part_of_a_result_follows_its_text(tmp_path, result, said, unsaid):
    """Unless a text already says the same."""
    async with servers(tmp_path, one=server("structured")) as found:
        answer = await found.by_name["one"].call("echo", {"text": json.dumps(result)})
        assert all(each in answer.text for each in said)
        assert not any(each in answer.text for each in unsaid)
        (tool,) = found.tools(OWNER, keep)
        shown = (await tool.execute(text=json.dumps(result))).content
        assert shown.startswith("<mcp_result")


async def test_a_large_structured_part_is_kept_and_cut(tmp_path):
    kept = {}

    async def keep_it(name, content, origins):
        kept[name] = content
        return f"mcp/{name}"

    result = {"content": [text("Many.")], "structuredContent": {"ids": ["y" * 40] * 1000}}
    async with servers(tmp_path, one=server("structured")) as found:
        (tool,) = found.tools(OWNER, keep_it)
        shown = (await tool.execute(text=json.dumps(result))).content
        assert len(shown) < 16_000
        assert kept["one.txt"].count(b"y" * 40) == 1000


async def test_what_a_model_means_by_null_reaches_a_server_as_left_out(tmp_path):
    schema = {
        "type": "object",
        "properties": {
            "q": {"type": "string"},
            "limit": {"type": "integer"},
            "at": {"type": ["integer", "null"]},
        },
        "required": ["q"],
    }
    async with servers(tmp_path, one=server("arguments", tmp_path / "log", json.dumps(schema))) as found:
        (tool,) = found.tools(OWNER, keep)
        said = (await tool.execute(q="pen", limit=None, at=None)).content
        assert json.dumps({"q": "pen", "at": None}) in said


@pytest.mark.parametrize("behaviour", ["late", "ignores"])
async def test_the_limit_of_a_start_is_for_all_of_it(tmp_path, monkeypatch, behaviour):
    """The SDK's own limit for its first request ends no start: not of a slow server, nor of one that says nothing."""
    from mcp.client import session

    monkeypatch.setattr(session, "DISCOVER_TIMEOUT_SECONDS", 0.2)
    async with servers(tmp_path, one=server(behaviour, start_s=60)) as found:
        assert await echoed(found, "one") == "hello"
