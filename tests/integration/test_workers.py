"""A daemon with accounts and a worker on one PostgreSQL, in one process: who does what, and what people and models are shown."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.models import (
    MemoryScope,
    Message,
    ModelChunk,
    ScopeKind,
    Session,
    ToolCall,
    ToolDefinition,
    Usage,
)
from gateway.app import Overrides, build
from gateway.app.worker import FilesElsewhere, refuse_servers
from gateway.errors import ConfigInvalid, NeedsAccount
from gateway.queue.lease import LeaseTimes
from gateway.settings import Settings
from gateway.supervision.gateway import Gateway
from gateway.system.event_loop import loop_for
from gateway.system.home import open_home
from gateway.system.process_role import ProcessRole
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
OWNER = "@ann:hs.test"
LEASE = LeaseTimes(30.0, 1.0, 0.2, 20.0, 25.0)


@pytest.fixture
def anyio_backend() -> Any:
    """The loop that psycopg needs."""
    return "asyncio", loop_for("postgresql://")


@dataclass
class Model:
    """Says what it is told to; notes what it was shown, and waits while it is ``held``."""

    name: str
    calls: list[tuple[str, str]]
    tools: dict[str, ToolCall] = field(default_factory=dict)
    held: anyio.Event | None = None

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        return self._answer(messages)

    async def _answer(self, messages: Sequence[Message]) -> AsyncGenerator[ModelChunk, None]:
        text = "\n".join(message.content for message in messages)
        self.calls.append((self.name, text))
        if self.held is not None:
            await self.held.wait()
        question = messages[-1].content
        wanted = next((call for words, call in self.tools.items() if words in question), None)
        if question.startswith("<conversation>"):
            yield "A summary."
        elif wanted is not None:
            yield wanted
        else:
            yield f"from {self.name}"
        yield Usage(prompt_tokens=10, completion_tokens=5, calls=1, model="said")


@dataclass
class Pair:
    """Both, and the people's side."""

    server: LoopbackServer
    accounts: Gateway
    worker: Gateway
    calls: list[tuple[str, str]]
    models: dict[str, Model]

    async def asked(self, text: str, person: str = OWNER) -> str:
        """The answer to a message in the one room there is."""
        before = len(self.server.seen())
        self.server.say(person, text, conversation="room")
        return (await self.server.answers(before + 1))[before].text

    def thought(self) -> list[str]:
        """Who has made the model calls, in order."""
        return [name for name, _ in self.calls]

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(15):
            while not condition():
                await anyio.sleep(0.02)


def settings(url: str, **more: Any) -> Settings:
    return Settings.model_validate(
        {
            "gateway": {"store": url, "state_key": "a-state-key-of-the-tests"},
            "owner": {"aliases": [{"channel": "matrix", "address": OWNER}]},
            "agents": {"heartbeat": {"enabled": False}, **more.pop("agents", {})},
            **more,
        }
    )


@asynccontextmanager
async def pair(
    url: str, folder: Path, role: ProcessRole = ProcessRole.ACCOUNTS, **more: Any
) -> AsyncIterator[Pair]:
    server, calls, built, models = LoopbackServer(), list[tuple[str, str]](), [], {}
    for name, each in (("accounts", role), ("worker", ProcessRole.WORKER)):
        models[name] = Model(name, calls)
        overrides = Overrides(
            channels={"matrix": (LoopbackChannel(server, name="matrix"), "merge")},
            models={"demo": models[name]},
            allow_from={"matrix": ("*",)},
            lease=LEASE,
        )
        built.append(await build(settings(url, **more), open_home(folder / name), overrides, each))
    async with anyio.create_task_group() as tasks:
        for one in built:
            tasks.start_soon(one.run)
            await one.started.wait()
        made = Pair(server, *built, calls, models)
        await made.until(lambda: built[0].accounts.found.workers and built[0].accounts.has("matrix"))
        yield made
        for one in built:
            one.stop()


async def test_a_worker_thinks_and_the_account_shows_that(postgres: PostgresServer, tmp_path: Path) -> None:
    """While the worker thinks people see typing; a tool of the home is the other's, after the answer that wants it."""
    async with pair(postgres.with_tables(), tmp_path) as both:
        both.models["worker"].held = held = anyio.Event()
        both.models["worker"].tools["write"] = ToolCall(
            id="c", name="write_file", arguments={"path": "a.txt", "content": "x"}
        )
        both.server.say(OWNER, "hello", conversation="room")
        await both.until(lambda: both.server.typing)
        held.set()
        assert [each.text for each in await both.server.answers(1)] == ["from worker"]
        await both.until(lambda: not both.server.typing)
        assert await both.asked("write it") == "from accounts"
        assert both.thought() == ["worker", "worker", "accounts"]
        workspace = [path.name for path in tmp_path.rglob("a.txt")]
        assert len(workspace) == 1 and next(tmp_path.rglob("a.txt")).is_relative_to(tmp_path / "accounts")


async def test_somebody_joins_while_a_worker_thinks(postgres: PostgresServer, tmp_path: Path) -> None:
    """What was said alone is in no prompt from then on, whichever process makes it; alone again, it is."""
    async with pair(postgres.with_tables(), tmp_path) as both:
        await both.asked("the code of my safe is 4711")
        both.models["worker"].held = held = anyio.Event()
        both.server.say(OWNER, "what is it again?", conversation="room")
        await both.until(lambda: len(both.calls) == 2)
        assert "4711" in both.calls[1][1]
        both.server.groups.add("room")
        both.server.say("@bob:hs.test", "what did Ann say?", conversation="room")
        held.set()
        await both.server.answers(3)
        assert both.thought() == ["worker"] * 3
        assert "what did Ann say?" in both.calls[2][1] and "4711" not in both.calls[2][1]
        both.server.groups.clear()
        await both.asked("and now?")
        assert "4711" in both.calls[3][1]


async def test_a_new_conversation_is_begun_where_the_account_is(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Behind a question that a worker has in hand: what comes next is given back, sets aside once, and later ones are the worker's."""
    async with pair(postgres.with_tables(), tmp_path) as both:
        both.models["worker"].held = held = anyio.Event()
        both.server.say(OWNER, "an old question", conversation="room")
        await both.until(lambda: both.calls)
        both.server.say(OWNER, "!new", conversation="room")
        await both.server.answers(1)
        held.set()
        await both.server.answers(2)
        assert await both.asked("a new question") == "from accounts"
        assert "an old question" not in both.calls[1][1]
        assert await both.asked("another one") == "from worker"
        assert "a new question" in both.calls[2][1] and "an old question" not in both.calls[2][1]
        assert await both.asked("one more") == "from worker"
        assert "another one" in both.calls[3][1]


async def test_a_conversation_is_consolidated_where_the_account_is(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Once, although a worker has written all of it."""
    agents = {"consolidation_threshold": 4, "keep_recent_ratio": 0.5}
    async with pair(postgres.with_tables(), tmp_path, agents=agents) as both:
        for number in range(3):
            await both.asked(f"question {number}")
        await both.until(lambda: both.accounts.post_turn.state()["consolidation"]["segments"])
        assert both.thought() == ["worker"] * 3 + ["accounts"]
        assert both.worker.post_turn.state()["consolidation"]["segments"] == 0


async def test_a_daemon_in_the_role_of_all_works_beside_workers(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """It begins what it has places for; each message is answered once, by one of them."""
    async with pair(postgres.with_tables(), tmp_path, role=ProcessRole.ALL) as both:
        for number in range(5):
            assert await both.asked(f"question {number}") in {"from accounts", "from worker"}
        assert len(both.server.seen()) == len(both.calls) == 5


async def test_nobody_waits_for_a_worker_that_ends(postgres: PostgresServer, tmp_path: Path) -> None:
    """It finishes what it has in hand; what comes meanwhile is begun by the daemon with the account."""
    async with pair(postgres.with_tables(), tmp_path) as both:
        both.models["worker"].held = held = anyio.Event()
        both.server.say(OWNER, "in hand", conversation="room")
        await both.until(lambda: both.calls)
        both.worker.stop()
        both.server.say(OWNER, "meanwhile", conversation="another room")
        assert [each.text for each in await both.server.answers(1)] == ["from accounts"]
        held.set()
        assert [each.text for each in await both.server.answers(2)] == ["from accounts", "from worker"]


async def test_status_names_the_workers(postgres: PostgresServer, tmp_path: Path) -> None:
    """With what they have in hand; a worker has no channel, and is ready."""
    async with pair(postgres.with_tables(), tmp_path) as both:
        both.models["worker"].held = held = anyio.Event()
        both.server.say(OWNER, "hello", conversation="room")
        await both.until(lambda: both.calls)
        for one, here in ((both.accounts, [True, False]), (both.worker, [False, True])):
            report = await one.status.read()
            by_role = sorted(report["processes"], key=lambda each: bool(each.get("worker")))
            assert [each.get("turns") for each in by_role] == [None, 1]
            assert [each["here"] for each in by_role] == here
            assert report["without_process"] == []
        assert (await both.worker.status.read())["channels"] == {} and both.worker.supervisor.all_up
        held.set()
        await both.server.answers(1)


async def test_a_worker_needs_a_database_of_several(tmp_path: Path) -> None:
    """The embedded queue has one process; the answer is a sentence and 78."""
    with pytest.raises(ConfigInvalid, match="a worker has no account") as raised:
        await build(Settings(), open_home(tmp_path / "home"), Overrides(), ProcessRole.WORKER)
    assert raised.value.exit_code == 78


def test_files_and_servers_of_others_are_given_back(tmp_path: Path) -> None:
    """Files in another home, and MCP servers for whoever may use them."""
    with pytest.raises(NeedsAccount):
        FilesElsewhere(tmp_path).read("attachments/aa/x", 1, offset=0, max_bytes=1)
    some = Settings.model_validate({"mcp": {"servers": {"notes": {"command": "true"}}}})
    owners, room = (
        Session("matrix/room", MemoryScope(kind, "matrix/room")) for kind in (ScopeKind.OWNER, ScopeKind.ROOM)
    )
    with pytest.raises(NeedsAccount):
        refuse_servers(some, owners)
    refuse_servers(some, room)
    refuse_servers(Settings(), owners)
