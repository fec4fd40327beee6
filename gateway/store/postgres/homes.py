"""Lists the homes of a PostgreSQL server: each database that has squidbot's tables is one. Only reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from agent_core.state_folder import StateUnreachable
from gateway.store.lease import DAEMON, LeaseTimes
from gateway.store.model import Machine
from gateway.store.postgres.bounded_wait import BeforeCall, BoundedWait
from gateway.store.postgres.postgres_connection import CONNECT_S, SCHEMA, Transaction, connect, place_of
from gateway.store.postgres.postgres_errors import open_error
from gateway.store.postgres.postgres_queue import HOME
from gateway.store.sql import lease_rows
from gateway.store.store_errors import StoreUnavailable

_DATABASES = (
    "SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate"
    " AND has_database_privilege(datname, 'CONNECT') ORDER BY datname"
)
_MAY_READ = (
    "SELECT has_schema_privilege(pg_namespace.oid, 'USAGE') FROM pg_class"
    " JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE (nspname, relname) = (%s, 'all_leases')"
)


@dataclass(frozen=True, slots=True)
class HomeOnServer:
    """A home: the name of its database, its machines, and why these could not be read, if so."""

    name: str
    machines: Sequence[Machine] = ()
    problem: str = ""


async def homes_of(url: str, *, within_s: float = CONNECT_S) -> list[HomeOnServer]:
    """
    Return the homes on a server, among the databases to which the role may connect.

    One that exceeds ``within_s`` seconds has a ``problem``. Raises StoreUnavailable or StoreUnusable.
    """
    where = place_of(url)
    try:
        names = BoundedWait(where).wait_for(lambda wanted: _databases(url, wanted), within_s)
    except psycopg.Error as error:
        raise open_error(error, where, "homes") from error
    except StateUnreachable as error:
        raise StoreUnavailable(str(error)) from error
    found = []
    for name in names:
        try:
            home = BoundedWait(name).wait_for(lambda wanted, name=name: _home(url, name, wanted), within_s)  # type: ignore[misc]
        except (psycopg.Error, StateUnreachable) as error:
            home = HomeOnServer(name, problem=str(error).strip().partition("\n")[0])
        found += [home] if home else []
    return found


def _databases(url: str, wanted: BeforeCall) -> list[str]:
    wanted()
    with connect(url) as db:
        return [name for (name,) in db.execute(_DATABASES)]


def _home(url: str, name: str, wanted: BeforeCall) -> HomeOnServer | None:
    """Return the home in this database; None if it has no tables of squidbot."""
    wanted()
    with connect(url, database=name) as db:
        may_read = db.execute(_MAY_READ, (SCHEMA,)).fetchone()
        if may_read is None:
            return None
        if may_read != (True,):
            return HomeOnServer(name, problem="the role may not read it")
        seen = Transaction(db, HOME, look_only=True)
        (now,) = seen.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        machines = lease_rows.machines(seen, DAEMON, LeaseTimes().ttl_s, float(now))
        seen.commit()
        return HomeOnServer(name, machines)
