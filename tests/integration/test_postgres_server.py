"""The throw-away PostgreSQL of the tests: a crash, a freeze, and a server that follows it."""

from __future__ import annotations

import psycopg
import pytest

from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]


@pytest.fixture
def own(postgres: PostgresServer):
    """One that a test may kill; where there is none, the session's fixture has said why."""
    with PostgresServer.start() as server:
        yield server


def test_what_was_committed_is_there_after_a_crash(own: PostgresServer):
    database = own.new_database()
    with psycopg.connect(own.url(database)) as db:
        db.execute("CREATE TABLE kept (x INT)")
        db.execute("INSERT INTO kept VALUES (7)")
    own.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own.url(database), connect_timeout=5)
    own.begin()
    with psycopg.connect(own.url(database)) as db:
        assert db.execute("SELECT x FROM kept").fetchone() == (7,)


def test_a_frozen_server_answers_after_its_thaw(own: PostgresServer):
    with own.admin() as db:
        own.freeze()
        with pytest.raises(psycopg.OperationalError):
            own.admin(connect_timeout=2)
        own.freeze(thaw=True)
        assert db.execute("SELECT 1").fetchone() == (1,)


def test_a_replica_takes_no_writes(own: PostgresServer):
    database = own.new_database()
    with PostgresServer.replica_of(own) as replica, psycopg.connect(replica.url(database)) as db:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            db.execute("CREATE TABLE kept (x INT)")
