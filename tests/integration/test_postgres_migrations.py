"""Databases that an earlier version has made: `squidbot migrate` makes their tables those of today."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest

import tests.postgres_server as server_tools
from gateway.queue.postgres import schema
from gateway.queue.postgres.store import PostgresQueue, migrate
from gateway.queue.stores import StoreUnusable
from gateway.queue.wakeups import Wakeups
from tests.clock import ManualClock
from tests.contract.queue_data import OTHER, accept, answer, claim
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]
DATA = Path(__file__).parents[1] / "data"
VERSIONS = sorted(int(file.stem.rpartition("-v")[2]) for file in DATA.glob("postgres-v*.sql"))


def older(postgres: PostgresServer, version: int) -> str:
    """A database that this version has made: a message that was answered, and one that waits."""
    url = postgres.url(postgres.new_database())
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET check_function_bodies = false")
        db.execute((DATA / f"postgres-v{version}.sql").read_text())
    return url


def tables_of(url: str) -> list[str]:
    """Tables, views, indexes, functions and triggers as the server describes them."""
    command = [str(server_tools._binaries() / "pg_dump"), "--schema-only", "--no-owner", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return sorted(re.sub(r"^\\\S+ .*$", "", done.stdout, flags=re.MULTILINE).split("\n\n"))


def test_every_earlier_version_has_its_database():
    assert list(range(VERSIONS[0], schema.VERSION)) == VERSIONS
    assert sorted(schema._STEPS) == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_older_database_becomes_what_a_new_one_is(postgres: PostgresServer, version: int):
    """Nothing is lost, it goes on to work, and a second time there is nothing to do."""
    url, new = older(postgres, version), postgres.url(postgres.new_database())
    with pytest.raises(StoreUnusable, match="`squidbot migrate` brings them up to date"):
        await PostgresQueue.open(url, clock=ManualClock())
    assert f"schema {schema.VERSION}" in migrate(url)
    assert "nothing to do" in migrate(url)
    migrate(new)
    assert tables_of(url) == tables_of(new)
    async with await PostgresQueue.open(url, clock=ManualClock(), wakeups=Wakeups()) as store:
        rows = {row.message.native_id: str(row.state) for row in await store.inbox.rows()}
        assert rows == {"a": "answered", "b": "ready"}
        await answer(store, await claim(store))
        [row] = await accept(store, "c", session=OTHER)
        assert row.id == 3


def test_a_step_that_is_left_out_is_noticed(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    """The control: the version says that all is new, and the functions are those of before."""
    monkeypatch.setitem(schema._STEPS, VERSIONS[-1], lambda: iter(()))
    url, new = older(postgres, VERSIONS[-1]), postgres.url(postgres.new_database())
    migrate(url)
    migrate(new)
    assert tables_of(url) != tables_of(new)


def test_a_migration_that_fails_changes_nothing(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    """It is one transaction."""
    url = older(postgres, VERSIONS[0])
    before = tables_of(url)
    monkeypatch.setitem(schema._STEPS, schema.VERSION - 1, lambda: iter(["SELECT 1 / 0"]))
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(url)
    assert tables_of(url) == before
