"""A database that a real server has restored to an earlier moment, by a base backup and archived WAL."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import psycopg
import pytest

from gateway.app import Overrides, build
from gateway.errors import ConfigInvalid
from gateway.operations.backup.restore import accept_restored_server
from gateway.settings import Settings
from gateway.store.lease import unwrap_lost_lease
from gateway.store.postgres import restore_detection as recognising
from gateway.store.postgres.postgres_queue import PostgresQueue, migrate
from gateway.store.rollback_guard import Extent, Gap, HighWaterMark, read_high_water_mark
from gateway.store.states import InboxState, OutboxState
from gateway.store.store_errors import StoreUnusable
from gateway.system.clock import SystemClock
from gateway.system.home import Home, open_home
from tests.contract.queue_data import OTHER, accept, out
from tests.postgres_server import ADMIN, PASSWORD, ROLE, PostgresServer, _other_user

pytestmark = [pytest.mark.integration, pytest.mark.slow]
NOW = datetime(2026, 1, 3, tzinfo=UTC)


def archive_of(server: PostgresServer) -> Path:
    """Have a server keep its log."""
    archive = server.folder / "archive"
    archive.mkdir()
    if (user := _other_user()) is not None:
        os.chown(archive, *user)
    with server.admin() as db:
        db.execute("ALTER SYSTEM SET archive_mode = on")
        db.execute(
            f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/new && mv {archive}/new {archive}/%f'"
        )
    server.kill()
    server.begin()
    return archive


def base_of(server: PostgresServer) -> PostgresServer:
    """Another server with a base backup of this one, not started."""
    other = PostgresServer(PostgresServer._new_folder(), fsync=False)
    server._run(
        "pg_basebackup", "-D", str(other.data), "-X", "none", "-c", "fast",
        "-d", server.url("postgres", user=ADMIN),
    )  # fmt: skip
    return other


def bring_to(other: PostgresServer, moment: str, archive: Path) -> None:
    """Start it as of a moment."""
    with (other.data / "postgresql.auto.conf").open("a") as file:
        file.write(
            f"restore_command = 'cp {archive}/%f %p'\nrecovery_target_time = '{moment}'\n"
            "recovery_target_action = 'promote'\narchive_mode = off\n"
        )
    (other.data / "recovery.signal").touch()
    if (user := _other_user()) is not None:
        os.chown(other.data / "recovery.signal", *user)
    other.begin()
    until = time.monotonic() + 60
    with other.admin() as db:
        while db.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
            assert time.monotonic() < until
            time.sleep(0.1)


async def runs(url: str, home: Home) -> None:
    """A start of a daemon, and its end."""
    settings = Settings.model_validate({"gateway": {"store": url, "state_key": "a-key-of-the-tests-for-it"}})
    built = await build(settings, home, Overrides())
    with unwrap_lost_lease():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(built.run)
            with anyio.fail_after(60):
                await built.started.wait()
            built.stop()


async def test_nothing_is_taken_from_an_earlier_moment_until_a_person_has_said_so(tmp_path: Path):
    """What was open is parked, the keys of accounts are older ones; the same commands with nothing lost park nothing."""
    home = open_home(tmp_path / "home")
    with PostgresServer.start() as server:
        archive = await anyio.to_thread.run_sync(archive_of, server)
        name = server.new_database()
        url = server.url(name)
        migrate(url)
        await runs(url, home)
        base = await anyio.to_thread.run_sync(base_of, server)
        try:
            async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
                await accept(queue, "a")
                await queue.outbox.post([out("1", session=OTHER)])
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("SET squidbot.home = '1'")
                db.execute("INSERT INTO squidbot.account_file VALUES ('matrix', 'DEV', 7)")
                [moment] = db.execute("SELECT now()::text").fetchone() or ("",)
            await anyio.sleep(1.1)
            async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
                await accept(queue, "lost", session=OTHER)
            await runs(url, home)
            with server.admin() as admin:
                [last] = admin.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or ("",)
            until = time.monotonic() + 60
            while not (archive / last).exists():
                assert time.monotonic() < until
                await anyio.sleep(0.2)
            server.kill()
            await anyio.to_thread.run_sync(bring_to, base, moment, archive)
            there = base.url(name)
            with psycopg.connect(there, autocommit=True) as db:
                db.execute(
                    "UPDATE squidbot.all_leases SET expires_at = 0"
                )  # of the past, in the time of today

            for place in (home, open_home(tmp_path / "other")):
                with pytest.raises(ConfigInvalid, match="may have been restored") as refused:
                    await runs(there, place)
                assert refused.value.exit_code == 78
                assert "squidbot restored --until" in str(refused.value)
            with psycopg.connect(there, autocommit=True) as db:
                db.execute("UPDATE squidbot.all_leases SET expires_at = 0")
            async with await PostgresQueue.open(there, clock=SystemClock()) as queue:
                [row] = await queue.inbox.rows()
                assert (row.message.native_id, row.state) == ("a", InboxState.READY)  # nothing was taken

            now = datetime.now(UTC)
            parked = accept_restored_server(home, there, now=now, until=None, moved=False)
            assert (parked.answers, parked.questions) == (1, 1)
            with psycopg.connect(there, autocommit=True) as db:
                assert db.execute("SELECT generation FROM squidbot.all_account_file").fetchall() == [(-1,)]
                db.execute("UPDATE squidbot.all_leases SET expires_at = 0")
            async with await PostgresQueue.open(there, clock=SystemClock()) as queue:
                [row] = await queue.inbox.rows()
                assert row.state is InboxState.QUARANTINED
                [send] = await queue.outbox.rows()
                assert send.state is OutboxState.UNCERTAIN
                gap = await queue.check_restored(read_high_water_mark(home.high_water_mark))
                assert gap is not None
                assert gap.covers(now - timedelta(seconds=5))
                assert not gap.covers(now + timedelta(seconds=5))
        finally:
            base.stop()


async def in_both(primary: PostgresServer, replica: PostgresServer, name: str) -> str:
    """The URL that names both."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
    return f"postgresql://{ROLE}:{PASSWORD}@{hosts}/{name}"


async def said(url: str, native_id: str) -> None:
    async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
        await accept(queue, native_id)


@pytest.mark.parametrize("knows", [True, False], ids=["a home that knows it", "control: a new home"])
async def test_a_start_accepts_the_replica_for_which_commits_have_waited(tmp_path: Path, *, knows: bool):
    """It was off while the replica took over; from then on the new server is the known one, also for others."""
    home, new = open_home(tmp_path / "home"), open_home(tmp_path / "new")
    with PostgresServer.start() as server:
        name = server.with_tables().rpartition("/")[2]
        with PostgresServer.replica_of(server) as replica:
            await anyio.to_thread.run_sync(server.confirmed_by_replica)
            url = await in_both(server, replica, name)
            await said(url, "a")
            await runs(url, home)
            server.kill()
            await anyio.to_thread.run_sync(replica.promote)
            if not knows:
                with pytest.raises(ConfigInvalid, match="another timeline"):
                    await runs(url, new)
                return
            await runs(url, home)
            await runs(url, new)
            async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
                assert [row.message.native_id for row in await queue.inbox.rows()] == ["a"]


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_replica_that_lacks_something_asks_a_person(tmp_path: Path, *, confirmed: bool):
    """Also one for which commits had waited until it was away; what a person says is noted beside a daemon, too."""
    home = open_home(tmp_path / "home")
    with PostgresServer.start() as server:
        name = server.with_tables().rpartition("/")[2]
        with PostgresServer.replica_of(server) as replica:
            if confirmed:
                await anyio.to_thread.run_sync(server.confirmed_by_replica)
            url = await in_both(server, replica, name)
            await said(url, "a")
            await runs(url, home)
            until = time.monotonic() + 60
            with psycopg.connect(replica.url(name), autocommit=True) as db:
                while db.execute("SELECT count(*) FROM squidbot.all_inbox").fetchone() != (1,):
                    assert time.monotonic() < until
                    await anyio.sleep(0.1)
            replica.kill()
            with server.admin() as db:
                db.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
                db.execute("SELECT pg_reload_conf()")
            await said(server.url(name), "lost")
            await runs(server.url(name), home)
            server.kill()
            replica.begin()
            await anyio.to_thread.run_sync(replica.promote)
            with pytest.raises(ConfigInvalid, match="had more messages than now") as refused:
                await runs(url, home)
            assert refused.value.exit_code == 78
            with pytest.raises(ConfigInvalid, match="another timeline"):
                await runs(url, open_home(tmp_path / "new"))
            async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
                assert await queue.maintenance.lease("daemon", holder="one that goes on", ttl_s=600)
                accept_restored_server(home, url, now=SystemClock().now(), until=None, moved=True)
                await queue.maintenance.release_lease("daemon", holder="one that goes on")
            await runs(url, home)


async def test_a_move_to_another_server_changes_nothing(
    postgres: PostgresServer, tmp_path: Path, monkeypatch
):
    """`--moved` notes the server; the control is a server that nobody has noted."""
    url = postgres.url(postgres.new_database())
    migrate(url)
    home = open_home(tmp_path / "home")
    async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
        assert await queue.check_restored(None) is None
        await accept(queue, "a")
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("UPDATE squidbot.all_meta SET value = '7/00000001' WHERE name = 'server'")
        with pytest.raises(StoreUnusable, match="another timeline"):
            await queue.check_restored(None)
    accept_restored_server(home, url, now=NOW, until=None, moved=True)
    async with await PostgresQueue.open(url, clock=SystemClock()) as queue:
        assert await queue.check_restored(None) is None
        [row] = await queue.inbox.rows()
        assert row.state is InboxState.READY


@pytest.mark.parametrize(
    ("inbox", "identity", "said", "refused"),
    [
        (5, "x", None, True),
        (4, "x", None, False),
        (5, "another", None, False),
        (5, "x", NOW + timedelta(hours=1), False),
        (5, "x", NOW - timedelta(hours=1), True),
    ],
)
def test_a_home_that_has_seen_more_refuses(
    inbox: int, identity: str, said: datetime | None, *, refused: bool
):
    """Unless it is another database, or a person has said since that it was restored."""
    mark = HighWaterMark(Extent(identity, inbox, 1), NOW)
    known = None if said is None else recognising.AcceptedRestore(said, Gap(said, said))
    now = Extent("x", 4, 1)
    if not refused:
        recognising.refuse_older("there", mark, now, known)
        return
    with pytest.raises(StoreUnusable, match="it had more messages than now"):
        recognising.refuse_older("there", mark, now, known)
