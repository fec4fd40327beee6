"""What the processes on one database tell each other, on a real server: that it arrives, and that it may get lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import psycopg
import pytest

from agent_core.messages import SessionKey
from gateway.app import Overrides, build
from gateway.queue.lease import Holders, LeaseKeeper, LeaseTimes
from gateway.queue.opening import held_queue
from gateway.queue.postgres.notifications import Notifications
from gateway.queue.postgres.store import HOME, PostgresQueue
from gateway.queue.sql.cluster import PROCESS
from gateway.queue.states import InboxState
from gateway.queue.stores import NewOutbound
from gateway.queue.wakeups import Wakeups
from gateway.settings import Settings
from gateway.supervision.accounts import Accounts
from gateway.supervision.gateway import Gateway
from gateway.supervision.other_processes import OtherProcesses
from gateway.system.home import open_home
from tests.clock import ManualClock
from tests.contract.queue_data import accept
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.pooler import Pooler
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
_NAMES = {"a": "bot-a", "b": "bot-b"}


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.with_tables()


class Process:
    """What one process tells and hears."""

    def __init__(self, line: Notifications) -> None:
        self.line = line
        self.heard: list[str | None] = []

    @property
    def names(self) -> list[str]:
        return [name for name in self.heard if name is not None]


async def nowhere() -> str:
    """No channel is the one by which the owner is written to."""
    return ""


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.01)


@asynccontextmanager
async def process(url: str, home: int = HOME) -> AsyncIterator[Process]:
    """One that has connected."""
    async with (
        await PostgresQueue.open(url, clock=ManualClock(), home=home) as queue,
        anyio.create_task_group() as tasks,
    ):
        made = Process(queue.notifications())
        tasks.start_soon(made.line.run, made.heard.append)
        await until(lambda: made.heard)
        yield made
        tasks.cancel_scope.cancel()


async def test_what_one_tells_all_others_hear(url: str):
    """Each once, whatever the name is; not who told it, and not the processes of another home."""
    async with process(url) as one, process(url) as two, process(url) as three:
        for name in ("matrix", "it's", 'a "name"', "with \\ and %s", "zoë", ""):
            one.line.tell(name)
            await until(lambda name=name: name in two.names and name in three.names)
        two.line.tell("back")
        await until(lambda: "back" in one.names and "back" in three.names)
        assert one.names == ["back"]
        assert len(three.names) == len(set(three.names))
        assert [each.line.listening for each in (one, two, three)] == [True] * 3


async def test_many_are_told_together_and_each_once(url: str):
    async with process(url) as one, process(url) as two:
        for _ in range(1000):
            one.line.tell("matrix")
            one.line.tell("email")
        one.line.tell("last")
        await until(lambda: "last" in two.names)
        assert {"matrix", "email", "last"} == set(two.names)
        assert len(two.names) < 1000


async def test_a_lost_connection_is_made_anew_and_says_that_something_may_be_lost(url: str):
    async with process(url) as one, process(url) as two:
        for _ in range(3):
            two.heard.clear()
            with psycopg.connect(url, autocommit=True) as db:
                db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            one.line.tell("meanwhile")
            await until(lambda: two.line.listening and None in two.heard)
            one.line.tell("again")
            await until(lambda: "again" in two.names)
            await until(lambda: one.line.listening)


async def test_what_is_to_be_told_while_the_connection_is_lost_is_told_then(url: str):
    """Whoever listens keeps its own."""
    async with process(url) as two:
        with psycopg.connect(url, autocommit=True) as db:
            query = (
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
            [[listens]] = db.execute(query).fetchall()
            async with process(url) as one:
                for name in ("a", "b", "c"):
                    await until(lambda: one.line.listening)
                    db.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid NOT IN (pg_backend_pid(), %s)",
                        (listens,),
                    )
                    one.line.tell(name)
                    await until(lambda name=name: name in two.names)
        assert two.heard == [None, "a", "b", "c"]


async def test_a_server_that_is_away_is_waited_for():
    with PostgresServer.start() as server:
        url = server.with_tables()
        async with process(url) as one, process(url) as two:
            server.kill()
            one.line.tell("while it is away")
            await until(lambda: not two.line.listening)
            server.begin()
            await until(lambda: one.line.listening and two.line.listening)
            assert two.heard[-1] is None or "while it is away" in two.names


async def test_a_server_that_ends_idle_connections_leaves_who_listens_alone():
    """The control is a connection of anybody else."""
    with PostgresServer.start(settings={"idle_session_timeout": "300ms"}) as server:
        url = server.with_tables()
        with psycopg.connect(url, autocommit=True) as other:
            async with process(url) as one, process(url) as two:
                await anyio.sleep(1)
                with pytest.raises(psycopg.OperationalError):
                    other.execute("SELECT 1")
                one.line.tell("later")
                await until(lambda: "later" in two.names)
                assert two.heard == [None, "later"]


@pytest.mark.skipif(Pooler.program() is None, reason="PgBouncer is not installed")
async def test_behind_a_pooler_one_tells_and_hears_nothing(postgres: PostgresServer, url: str):
    with Pooler.start(postgres, url.rpartition("/")[2]) as pooler:
        async with process(pooler.url) as behind, process(url) as direct:
            behind.line.tell("from behind")
            await until(lambda: "from behind" in direct.names)
            direct.line.tell("to whom?")
            await anyio.sleep(0.2)
            assert behind.heard == [None] and not behind.line.listening


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
async def test_what_one_writes_for_an_account_of_another_is_asked_for_at_once(url: str, tmp_path, told: bool):
    """The control does not tell it, and whoever has the account does not know: its look is an hour away."""
    async with AsyncExitStack() as stack:
        machines = [await stack.enter_async_context(machine(url, tmp_path / name, told)) for name in "ab"]
        (first, one, store), (second, asked, _) = machines
        for name, (accounts, _, queue) in zip("ab", machines, strict=True):
            await queue.maintenance.take_accounts([name], configured=_NAMES, holder=accounts.holder)
        for accounts in (first, second):
            await accounts.look()
        assert first.has("a") and second.has("b")
        await until(lambda: one and asked)  # as after each new connection
        one.clear()
        asked.clear()
        await accept(store, "here", session=SessionKey("a", "room"))
        await accept(store, "there", session=SessionKey("b", "room"))
        with anyio.move_on_after(20 if told else 1):
            await until(lambda: asked)
        assert bool(asked) == told
        assert not one  # of its own it has heard without that


@asynccontextmanager
async def machine(url: str, folder, told: bool):
    """One of two processes, which has one of two accounts; how often it has asked; and its queue."""
    wakeups, asked = Wakeups(), []

    async def ask(_: object) -> None:
        asked.append(1)

    async def taken(_) -> None:
        pass

    async with (
        await PostgresQueue.open(url, clock=ManualClock(), wakeups=wakeups) as queue,
        anyio.create_task_group() as tasks,
    ):
        lease = LeaseKeeper(queue.maintenance, "", Holders(folder / "holders"), name=PROCESS)
        await lease.take()
        await lease.begin()
        tasks.start_soon(lease.run)
        line = queue.notifications()
        accounts = Accounts(
            queue.maintenance,
            lease,
            _NAMES,
            look_every_s=3600,
            drain_s=1,
            owners=nowhere,
            others=OtherProcesses(line if told else None),
        )
        tasks.start_soon(line.run, accounts.hear)
        tasks.start_soon(lambda: accounts.run([], [*_NAMES], taken=taken, others=ask))
        accounts.tell_of(wakeups)
        await until(lambda: line.listening)
        yield accounts, asked, queue
        tasks.cancel_scope.cancel()


@dataclass
class Two:
    """A real gateway that has the account ``one``, and a process of the test that has the account ``two``."""

    built: Gateway
    servers: Mapping[str, LoopbackServer]
    queue: PostgresQueue
    line: Process

    @staticmethod
    def to(name: str) -> NewOutbound:
        return NewOutbound(name, f"bot-{name}", SessionKey(name, "dm-ann"), "from elsewhere")

    @property
    def asked_at(self) -> float:
        """When the gateway has last asked for what others have written."""
        assert self.built.accounts is not None
        return self.built.accounts._others.asked_at

    def seen(self, name: str) -> int:
        return len(self.servers[name].seen("dm-ann"))


@asynccontextmanager
async def two_processes(url: str, tmp_path: Path, *, look_every_s: float = 3600.0) -> AsyncIterator[Two]:
    """The gateway has asked for what came before, and the next look is an hour away, unless it is said."""
    servers = {name: LoopbackServer() for name in ("one", "two")}
    channels = {
        name: (LoopbackChannel(server, name=name, account=f"bot-{name}"), "each")
        for name, server in servers.items()
    }
    names = {name: f"bot-{name}" for name in channels}
    async with (
        await PostgresQueue.open(url, clock=ManualClock()) as queue,
        anyio.create_task_group() as tasks,
    ):
        lease = LeaseKeeper(queue.maintenance, "", Holders(tmp_path / "holders"), name=PROCESS)
        await lease.take()
        await queue.maintenance.take_accounts(["two"], configured=names, holder=lease.holder)
        await lease.begin()
        tasks.start_soon(lease.run)
        line = Process(queue.notifications())
        tasks.start_soon(line.line.run, line.heard.append)
        built = await build(
            Settings.model_validate({"gateway": {"store": url}}),
            open_home(tmp_path / "home"),
            Overrides(channels=channels, lease=LeaseTimes(retried_s=look_every_s)),
        )
        ended = anyio.Event()

        async def run() -> None:
            await built.run()
            ended.set()

        tasks.start_soon(run)
        accounts = built.accounts
        assert accounts is not None
        await until(lambda: built.started.is_set() and accounts.has("one") and accounts._others.asked_at > 0)
        await until(lambda: line.line.listening)
        yield Two(built, servers, queue, line)
        built.stop()
        await ended.wait()
        tasks.cancel_scope.cancel()


async def test_a_gateway_sends_at_once_what_another_process_has_posted(url: str, tmp_path: Path):
    """Also what a command has posted. The control is the time in which nobody has said so: it does not ask."""
    async with two_processes(url, tmp_path) as two:
        before = two.asked_at
        await two.queue.outbox.post([two.to("one")])
        await anyio.sleep(0.5)
        assert two.asked_at == before
        two.line.line.tell("one")
        await until(lambda: two.asked_at > before and two.seen("one") == 1)
        before = two.asked_at
        async with held_queue(two.queue, url, tmp_path / "command", beside_others=True):
            await two.queue.outbox.post([two.to("one")])
            assert two.asked_at == before
        await until(lambda: two.asked_at > before and two.seen("one") == 2)


async def test_a_gateway_tells_another_process_what_it_has_posted(url: str, tmp_path: Path):
    """The control is what it posts for itself, of which it tells nobody."""
    async with two_processes(url, tmp_path) as two:
        await two.built.store.outbox.post([two.to("one")])
        await until(lambda: two.seen("one") == 1)
        assert two.line.names == []
        await two.built.store.outbox.post([two.to("two")])
        await until(lambda: two.line.names == ["two"])
        assert two.seen("two") == 0


async def test_a_gateway_finds_what_nobody_has_told(url: str, tmp_path: Path):
    """Who has posted it has died before it could tell: one look in ten finds it. The control is the test above."""
    async with two_processes(url, tmp_path, look_every_s=0.2) as two:
        for number in range(1, 4):
            await two.queue.outbox.post([two.to("one")])
            await until(lambda number=number: two.seen("one") == number)
        assert two.line.names == []


async def test_a_command_of_another_process_runs_beside_a_turn(url: str, tmp_path: Path):
    """Whoever wrote it tells only whose account it is; the question before it is still worked on."""
    async with two_processes(url, tmp_path) as two:
        session = SessionKey("one", "dm-ann")
        await accept(two.queue, "question", session=session)
        assert await two.queue.turns.claim(session) is not None
        [command] = await accept(two.queue, "command", session=session, text="!help", alone=True)
        two.line.line.tell("one")
        with anyio.fail_after(60):
            while [row.id for row in await two.queue.inbox.rows(states=[InboxState.READY])] == [command.id]:
                await anyio.sleep(0.05)
        running = await two.queue.inbox.rows(states=[InboxState.RUNNING], session=session)
        assert "question" in [row.message.native_id for row in running]  # and perhaps still the command
