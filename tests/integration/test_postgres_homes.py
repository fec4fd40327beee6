"""`squidbot status --cluster` on a real PostgreSQL: homes with a daemon, with a standby, without any, and closed ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from gateway.app import build
from gateway.cli.commands import app
from gateway.settings import Settings
from gateway.store.lease import facts_of
from gateway.store.postgres.homes import homes_of
from gateway.store.stores import StoreUnavailable
from gateway.system.home import open_home
from tests.postgres_server import ROLE, PostgresServer

pytestmark = [pytest.mark.integration]


@pytest.fixture
def server() -> PostgresServer:
    """One of its own: other tests' databases are homes, too."""
    with PostgresServer.start() as one:
        yield one


@asynccontextmanager
async def running(url: str, *homes: Path) -> AsyncIterator[None]:
    """Daemons of this process, the first one active."""
    async with anyio.create_task_group() as tasks:
        built = []
        for home in homes:
            gateway = {"store": url, "state_key": "a-state-key-of-the-tests"}
            built.append(await build(Settings.model_validate({"gateway": gateway}), open_home(home)))
            tasks.start_soon(built[-1].run)
            with anyio.fail_after(120):
                await built[-1].settled.wait()
        try:
            yield
        finally:
            for one in reversed(built):
                one.stop()


def show(capsys: pytest.CaptureFixture[str], config: Path, *options: str) -> str:
    capsys.readouterr()
    assert app(["status", "--cluster", "--config", str(config), *options], result_action="return_value") == 0
    return capsys.readouterr().out


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


async def test_homes_with_a_daemon_and_a_standby_and_without_any(
    server: PostgresServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """A database without a home is not listed; a machine that was not seen for long is missing."""
    ann, bob = server.with_tables(), server.with_tables()
    server.new_database()
    config = tmp_path / "squidbot.yaml"
    config.write_text(f'gateway: {{store: "{bob}", state_key: a-state-key-of-the-tests}}\n')
    async with running(ann, tmp_path / "one", tmp_path / "two"):
        text = await anyio.to_thread.run_sync(show, capsys, config)
        found = json.loads(await anyio.to_thread.run_sync(show, capsys, config, "--json"))["homes"]
        assert {each["name"] for each in found} == {name_of(ann), name_of(bob)}
        machines = {each["name"]: each["machines"] for each in found}
        assert sorted(each["does"] for each in machines[name_of(ann)]) == ["active", "standing by"]
        assert machines[name_of(bob)] == []
        assert f"home {name_of(bob)}\nNO MACHINE IS ACTIVE" in text
        assert text.count(": active for") == text.count(": standing by for") == 1
        with server.admin(name_of(ann)) as db:
            db.execute(
                "INSERT INTO squidbot.all_leases (home, name, holder, fence, expires_at)"
                " VALUES (1, 'machine:three', '1.0 three/7/x', 1, extract(epoch FROM now()) - 300)"
            )
        [home] = [each for each in await homes_of(bob) if each.name == name_of(ann)]
        assert [each["process"] for each in facts_of(home.machines) if each["does"] == "missing"] == [
            "process 7 on three"
        ]


async def test_what_may_not_be_read_is_named_and_what_may_not_be_opened_is_not(server: PostgresServer):
    """The homes of other roles."""
    mine, closed, hidden = server.with_tables(), server.with_tables(), server.with_tables()
    with server.admin(name_of(closed)) as db:
        db.execute("ALTER SCHEMA squidbot OWNER TO postgres")
        db.execute(f"REVOKE ALL ON SCHEMA squidbot FROM {ROLE}")
    with server.admin() as db:
        db.execute(f"ALTER DATABASE {name_of(hidden)} OWNER TO postgres")
        db.execute(f"REVOKE CONNECT ON DATABASE {name_of(hidden)} FROM PUBLIC, {ROLE}")
    found = {each.name: each.problem for each in await homes_of(mine)}
    assert found == {name_of(mine): "", name_of(closed): "the role may not read it"}


async def test_a_server_that_is_silent_is_given_up(server: PostgresServer):
    url = server.with_tables()
    server.freeze()
    try:
        with pytest.raises(StoreUnavailable):
            await homes_of(url, within_s=0.2)
    finally:
        server.freeze(thaw=True)
    assert [each.problem for each in await homes_of(url)] == [""]
