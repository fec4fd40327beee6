"""The lease of a home with several machines: standbys, long recoveries, outages, commands beside a daemon."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import anyio
import psycopg
import pytest

from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.store.lease import DAEMON, Holders, LeaseKeeper, LeaseLost, LeaseTaken, LeaseTimes
from gateway.store.postgres import postgres_connection
from gateway.store.postgres.postgres_connection import _LIMITS, Transaction, connect
from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.sql.engine import lock_first, named_lock
from gateway.store.states import InboxState
from gateway.store.store_errors import Fenced
from gateway.store.stores import Queue, StoreUnavailable
from gateway.system.clock import SystemClock
from gateway.system.home import Home, open_home
from tests.contract.queue_data import OTHER, ROOM, accept, answer, claim, out
from tests.doubles.queue import wrapping
from tests.integration.gateway_world import world
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]
ROOT = Path(__file__).resolve().parents[2]
TEMPORARY = 75
KEY = "a-state-key-of-the-tests"
SHORT = LeaseTimes(ttl_s=10.0, renewed_s=1.0, retried_s=0.5, asked_s=0.1, lost_s=8.0, ended_s=9.0)
"""Long enough for a busy machine to renew in time."""


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.with_tables()


def settings_of(url: str) -> Settings:
    return Settings.model_validate({"gateway": {"store": url, "state_key": KEY}})


def keeper(queue: Queue, folder: Path, times: LeaseTimes = SHORT) -> LeaseKeeper:
    """One that does not end this process."""
    return LeaseKeeper(
        queue.maintenance, "there", Holders(folder / "holders.json"), times=times, end=lambda _: None
    )


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresQueue]:
    async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
        yield queue


class _Slow:
    """The maintenance of a queue in which recovery takes longer than the lease."""

    def __init__(self, inner, fences):
        self._inner, self._fences = inner, fences

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def recover(self):
        for _ in range(6):
            await anyio.sleep(2.0)
            self._fences += [lease.fence for lease in await self._inner.leases()]
        await self._inner.recover()


async def test_the_lease_is_kept_while_a_long_recovery_runs(url: str, tmp_path: Path):
    """It takes 12 s, the lease ends after 10; the control is one that nobody renews."""
    fences: list[int] = []
    overrides = Overrides(lease=SHORT, wrap_queue=wrapping(maintenance=lambda inner: _Slow(inner, fences)))
    home = open_home(tmp_path / "one")
    built = await build(settings_of(url), home, overrides)
    async with opened(url) as queue, anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        with anyio.fail_after(60):
            await built.started.wait()
        assert fences == [1] * 6
        with pytest.raises(LeaseTaken, match=f"process {os.getpid()} on"):
            await keeper(queue, tmp_path).take()
        built.stop()
        tasks.cancel_scope.deadline = anyio.current_time() + 60
    async with opened(url) as queue:
        await keeper(queue, tmp_path).take()  # it was given back
        await anyio.sleep(SHORT.ttl_s + 0.5)
        await keeper(queue, tmp_path / "other").take()


class _AwayTwice:
    """The maintenance of a queue whose server is away at the first looks, when the lease has been taken."""

    def __init__(self, inner, away):
        self._inner, self._away = inner, away

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def last_ids(self):
        if self._away:
            raise StoreUnavailable(self._away.pop())
        return await self._inner.last_ids()


async def test_a_start_whose_server_is_away_for_a_moment_goes_on(
    url: str, tmp_path: Path, postgres: PostgresServer
):
    away = ["it has gone", "it has gone"]
    overrides = Overrides(lease=SHORT, wrap_queue=wrapping(maintenance=lambda inner: _AwayTwice(inner, away)))
    built = await build(settings_of(url), open_home(tmp_path / "one"), overrides)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        with anyio.fail_after(60):
            await built.started.wait()
        assert not away
        built.stop()
    await no_connection_stays(postgres, url)


async def test_a_second_machine_stands_by_until_the_first_one_ends(url: str, tmp_path: Path):
    """It is up and says so, holds nothing, and becomes the daemon within two seconds; then it ends in order."""
    first, second = [
        await build(settings_of(url), open_home(tmp_path / name), Overrides(lease=SHORT)) for name in "ab"
    ]
    async with opened(url) as queue, anyio.create_task_group() as tasks:
        tasks.start_soon(first.run)
        with anyio.fail_after(60):
            await first.started.wait()
            tasks.start_soon(second.run)
            await second.settled.wait()
        assert second.is_standby and not first.is_standby and not second.started.is_set()
        assert await second.standby_notice() and not await first.standby_notice()
        [held] = await queue.maintenance.leases()
        report = await second.status.read()
        assert report["standing_by"] and {one["does"] for one in report["machines"]} == {
            "active",
            "standing by",
        }
        assert [one["here"] for one in report["machines"] if one["does"] == "standing by"] == [True]
        first.stop()
        with anyio.fail_after(120):
            while any(lease.holder == held.holder for lease in await queue.maintenance.leases()):
                await anyio.sleep(0.02)
            given_back_at = anyio.current_time()
            await second.started.wait()
        assert anyio.current_time() - given_back_at < 10  # two seconds on a quiet machine
        assert not second.is_standby and (await second.status.read())["channels"]
        second.stop()
    async with opened(url) as queue:
        assert await queue.maintenance.leases() == []
        assert await queue.maintenance.machines(DAEMON, ttl_s=30) == []  # both ended in order


async def test_a_machine_that_stands_by_is_stopped(url: str, tmp_path: Path, postgres: PostgresServer):
    async with opened(url) as queue:
        held = keeper(queue, tmp_path)
        await held.take()
        built = await build(settings_of(url), open_home(tmp_path / "one"), Overrides(lease=SHORT))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(built.run)
            with anyio.fail_after(60):
                await built.settled.wait()
            built.stop()
        assert not built.started.is_set()
        assert [lease.holder for lease in await queue.maintenance.leases()] == [held.holder]
    await no_connection_stays(postgres, url)


async def test_a_gateway_that_has_lost_it_ends_and_says_only_that(url: str, tmp_path: Path):
    """Everything in it is cancelled, by one error that has code 75."""
    built = await build(settings_of(url), open_home(tmp_path / "one"), Overrides(lease=SHORT))
    async with opened(url) as queue, anyio.create_task_group() as tasks:

        async def taken_over() -> None:
            await built.started.wait()
            await queue.database.writer.call(
                "other",
                lambda db: db.execute("UPDATE leases SET holder = 'web2/7/x', fence = fence + 1"),
                locks=(),
            )

        tasks.start_soon(taken_over)
        with pytest.raises(
            LeaseLost, match=r"another squidbot has taken over .*\(process 7 on web2\)"
        ) as lost:
            with anyio.fail_after(60):
                await built.run()
        assert lost.value.exit_code == TEMPORARY
        assert [lease.holder for lease in await queue.maintenance.leases()] in ([], ["web2/7/x"])


async def test_a_daemon_has_seven_connections(url: str, tmp_path: Path, postgres: PostgresServer):
    """However many people write to it at once; so many are to be counted with for each."""
    async with world(tmp_path, settings={"gateway": {"store": url}}) as one:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(partial(one.asked, "hello", person=f"person{number}"))
        with anyio.fail_after(60):  # it may only just begin to listen
            while connections(postgres, url) < 7:
                await anyio.sleep(0.05)
        assert connections(postgres, url) == 7


async def test_the_database_refuses_whoever_has_lost_the_lease(url: str, tmp_path: Path):
    """A call that was on its way while another one took over changes nothing. The control holds no lease."""
    async with opened(url) as old, opened(url) as new, opened(url) as control:
        keeper_of_old = keeper(old, tmp_path / "old")
        await keeper_of_old.take()
        await accept(old, "a")
        [sent] = await old.outbox.post([out("1", session=OTHER)])
        turn = await claim(old)
        await new.database.writer.call(
            "end", lambda db: db.execute("UPDATE leases SET expires_at = 0"), locks=()
        )
        await accept(old, "b")  # nobody else has it yet
        await keeper(new, tmp_path / "new").take()
        await new.maintenance.recover()
        for refused in (
            accept(old, "c"),
            answer(old, turn),
            old.outbox.sending(sent),
            old.state.write("topic", "value"),
            old.turns.claim(ROOM),
            old.maintenance.recover(),
        ):
            with pytest.raises(Fenced):
                await refused
        assert [row.message.native_id for row in await old.inbox.rows()] == ["b", "a"]
        assert not await old.maintenance.renew_lease(
            "daemon", holder=keeper_of_old._holder, fence=1, ttl_s=30
        )
        await accept(new, "d")
        await accept(control, "e")


def test_the_server_ends_a_transaction_of_whoever_is_frozen_behind_many_statements(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    """Its locks would keep others from taking its accounts. The control is what the driver alone does."""
    monkeypatch.setitem(_LIMITS, "idle_in_transaction_session_timeout", "1s")
    held = []
    for ours in (True, False):
        with closing(connect(url)) as frozen, connect(url) as other:
            transaction = Transaction(frozen, 1)
            rows = [("a", "1"), ("b", "2")]
            if ours:
                transaction.executemany("INSERT INTO once (topic, value) VALUES (?, ?)", rows)
            else:
                transaction.lock("x")
                with frozen.cursor() as cursor:
                    cursor.executemany("INSERT INTO once (topic, value) VALUES (%s, %s)", rows)
            time.sleep(2.5)
            query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid"
            query += " FROM pg_database WHERE datname = current_database())"
            held.append(other.execute(query).fetchone()[0])  # type: ignore[index]
    assert held[0] == 0 and held[1] > 0


@pytest.mark.parametrize("control", [False, True])
async def test_others_keep_their_lease_beside_one_that_is_frozen_in_the_middle_of_its_renewal(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, control: bool
):
    """The server lets go of the lock before the next one counts as lost. The control waits as long as for any call."""
    times = LeaseTimes(ttl_s=18.0, renewed_s=1.0, retried_s=0.5, lost_s=10.0, ended_s=16.0)
    if control:
        monkeypatch.setattr(postgres_connection, "LEASE_IDLE_S", 15)
    async with opened(url) as queue:
        lease = LeaseKeeper(
            queue.maintenance,
            "there",
            Holders(tmp_path / "holders"),
            times=times,
            end=lambda _: None,
        )
        await lease.take()
        await lease.begin()
        with closing(connect(url)) as db:
            frozen = Transaction(db, 1, meets_recovery=False)
            lock_first(frozen, [named_lock("lease", DAEMON)])  # and then it stands still
            async with anyio.create_task_group() as tasks:
                if control:
                    with pytest.raises(LeaseLost):
                        await lease.run()
                else:
                    tasks.start_soon(lease.run)
                    oldest = 0.0
                    while not db_gone(db):
                        oldest = max(oldest, lease.age_s)
                        await anyio.sleep(0.1)
                    while lease.age_s > times.renewed_s + times.retried_s:
                        await anyio.sleep(0.1)
                    assert oldest < times.lost_s
                tasks.cancel_scope.cancel()


@pytest.mark.parametrize("control", [False, True])
async def test_others_go_on_while_one_waits_to_be_alone_with_what_a_frozen_process_holds(
    url: str, monkeypatch: pytest.MonkeyPatch, *, control: bool
):
    """They have turns between its tries, long before the server lets go of that. The control waits as any call does."""
    monkeypatch.setitem(_LIMITS, "idle_in_transaction_session_timeout", "12s")
    if control:
        monkeypatch.setattr(postgres_connection, "EXCLUSIVE_WAIT_S", 5)
    async with opened(url) as joining, opened(url) as living:
        with closing(connect(url)) as db:
            Transaction(db, 1).execute("SELECT 1")  # and then it stands still
            after_its_end = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(joining.maintenance.recover)
                await anyio.sleep(0.5)  # it waits
                for number in range(4):
                    await accept(living, f"{number}")
                    after_its_end.append(db_gone(db))
                    await anyio.sleep(1.1)
        assert any(after_its_end) == control


def db_gone(db: psycopg.Connection) -> bool:
    """Whether the server has ended a connection; it is not asked by a statement, which would make it live again."""
    return bool(select.select([db.fileno()], [], [], 0)[0])


def test_a_lock_of_leases_ends_before_anybody_loses_a_lease_by_it():
    """In life, too; and what a frozen process holds of all else before another one may take its accounts."""
    times = LeaseTimes()
    assert postgres_connection.LEASE_IDLE_S < times.lost_s - times.renewed_s
    assert (
        float(_LIMITS["idle_in_transaction_session_timeout"].removesuffix("s"))
        < times.ttl_s - times.renewed_s
    )


async def test_what_was_under_way_is_undone_before_the_lease_is_given_back(url: str, tmp_path: Path):
    """A claim whose caller was cancelled is nobody's when the next one begins, and no death of a turn."""
    async with opened(url) as queue:
        held = keeper(queue, tmp_path / "one")
        await held.take()
        await accept(queue, "a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(queue.turns.claim, ROOM)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await held.release()
        [row] = await queue.inbox.rows()
        assert row.state is InboxState.READY
        with pytest.raises(Fenced):
            await accept(queue, "b")  # the next one may have begun


def connections(postgres: PostgresServer, url: str) -> int:
    with postgres.admin() as db:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        return int(db.execute(query, (url.rpartition("/")[2],)).fetchone()[0])  # type: ignore[index]


async def no_connection_stays(postgres: PostgresServer, url: str) -> None:
    """A server takes a moment to see that a connection was closed."""
    with anyio.fail_after(120):
        while connections(postgres, url):
            await anyio.sleep(0.1)


def squidbot(home: Path, url: str, *command: str, notified: str = "") -> subprocess.Popen[str]:
    home.mkdir(mode=0o700, exist_ok=True)
    config = home / "squidbot.yaml"
    config.write_text(f"gateway: {{store: '{url}', state_key: {KEY}}}\n")
    config.chmod(0o600)
    return subprocess.Popen(
        [sys.executable, "-c", "from gateway.cli import main; main()", *command, "--home", str(home)],
        cwd=home, env={**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": notified},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def result(process: subprocess.Popen[str]) -> tuple[int, str]:
    told, _ = process.communicate(timeout=110)
    return process.returncode, told


CHANGING = [
    "forget --yes eve@example.org",
    "sessions reset --yes matrix/!r",
    "sessions reindex",
    "files undo 1",
    "send matrix:@ann:hs.test hello",
    "inbox retry 1",
    "cron add tea --every 1h",
    "memory undo",
]
LOOKING = ["status", "inbox list", "usage", "export eve@example.org", "forget --dry-run eve@example.org"]


async def test_commands_of_another_home_change_nothing_beside_a_daemon(url: str, tmp_path: Path):
    """They say who works there, and end with 75; what only looks does so. The control: nobody works there."""

    async def run(command: str) -> tuple[int, str]:
        process = squidbot(tmp_path / "two", url, *command.split())
        return await anyio.to_thread.run_sync(result, process)

    async with opened(url) as queue:
        holders = Holders(tmp_path / "holders.json")
        async with LeaseKeeper(queue.maintenance, "there", holders, end=lambda _: None).hold():
            for command in CHANGING:
                code, told = await run(command)
                assert code == TEMPORARY, (command, code, told)
                assert "another squidbot works on" in told and f"process {os.getpid()} on" in told, told
                assert "Give the command on that machine" in told and "Traceback" not in told, told
            for command in LOOKING:
                code, told = await run(command)
                assert "another squidbot" not in told and "Traceback" not in told, told
                assert code != TEMPORARY
        for command in CHANGING:
            code, told = await run(command)
            assert "another squidbot" not in told and code != TEMPORARY, (command, told)
            assert await queue.maintenance.leases() == [], command  # given back


def test_commands_at_a_machine_that_stands_by_name_the_daemon(url: str, tmp_path: Path):
    """`status` shows both machines; the control is the same command where the daemon is."""
    homes = [Home(tmp_path / name) for name in ("one", "two")]
    daemons = []
    try:
        for home in homes:
            daemons.append(squidbot(home.root, url, "run"))
            until = time.monotonic() + 60
            while not home.control_socket.exists() and time.monotonic() < until:
                time.sleep(0.05)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            code, told = result(squidbot(homes[1].root, url, "status"))
            if code == 0 and "active" in told:
                break
        assert "standing by" in told and "(this one)" in told, (
            told,
            daemons[1].poll() is not None and result(daemons[1]),
        )
        assert f"process {daemons[0].pid} on" in told and "version" in told, told
        code, told = result(squidbot(homes[1].root, url, "cron", "list"))
        assert code == TEMPORARY and f"process {daemons[0].pid} on" in told, told
        assert result(squidbot(homes[0].root, url, "cron", "list"))[0] == 0
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.communicate()


def test_a_daemon_whose_server_is_away_for_too_long_ends_with_one_sentence(tmp_path: Path):
    """And with 75, before its lease ends: a service manager starts it again until the server is back."""
    with PostgresServer.start() as server:
        url = server.with_tables()
        home = Home(tmp_path / "home")
        daemon = squidbot(home.root, url, "run")
        try:
            until = time.monotonic() + 60
            while not home.control_socket.exists() and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(0.5)
            server.kill()
            began = time.monotonic()
            code, told = result(daemon)
            assert code == TEMPORARY, told
            assert "so this one ends; start it again" in told.splitlines()[-1], told
            assert "Traceback" not in told, told
            assert time.monotonic() - began < 30
        finally:
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGKILL)
                daemon.wait()


async def test_under_a_service_manager_a_start_waits_for_the_server_and_stands_by(
    tmp_path: Path,
):
    """It says what it waits for; at a terminal (the cases of `test_postgres_refusals`) it ends at once."""
    told_to = str(tmp_path / "n")
    with PostgresServer.start() as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(told_to)
        manager.settimeout(60)
        url = server.with_tables()

        async def heard(*words: str) -> None:
            told = ""
            while not all(each in told for each in words):
                told += (await anyio.to_thread.run_sync(manager.recv, 4096)).decode()

        async with opened(url) as queue, keeper(queue, tmp_path, LeaseTimes()).hold():
            waiting = squidbot(tmp_path / "other", url, "run", notified=told_to)
            try:
                await heard("READY=1", "STATUS=standing by")
                waiting.terminate()
                code, told = await anyio.to_thread.run_sync(result, waiting)
                assert code == 0, told
            finally:
                waiting.kill()
                waiting.wait()
        server.kill()
        process = squidbot(tmp_path / "home", url, "run", notified=told_to)
        try:
            await heard("STATUS=waiting for the database: ", "cannot be reached")
            server.begin()
            await heard("READY=1")
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()
