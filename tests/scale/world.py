"""A PostgreSQL of its own, an exchange with virtual people, and as many daemons as wanted; and what all of them cost."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import psycopg
from anyio import to_thread

from tests.daemon import Daemon
from tests.postgres_server import PostgresServer
from tests.scale.daemon import PLAN
from tests.scale.exchange import Exchange
from tests.scale.people import People

_OPEN = (
    "SELECT (SELECT count(*) FROM squidbot.all_inbox WHERE state IN ('ready', 'running')),"
    " (SELECT count(*) FROM squidbot.all_outbox WHERE state IN ('pending', 'sending', 'uncertain')),"
    " (SELECT count(*) FROM squidbot.all_inbox WHERE state IN ('dead', 'quarantined')),"
    " (SELECT count(*) FROM squidbot.all_outbox WHERE state IN ('dead', 'unknown'))"
)
_SEED = "dm-seed"
_BEGUN_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What only grows; processor times in seconds."""

    clients_s: float
    """Of all daemons."""
    server_s: float
    people_s: float
    wal: int
    statements: int
    transactions: int
    deadlocks: int
    calls: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Counts):
    """All of it at one moment."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Counts):
    """What happened between two moments."""

    took_s: float

    @property
    def round_trips(self) -> int:
        """From all processes to the server and back."""
        return sum(counts[2] for counts in self.calls.values())

    @property
    def retried(self) -> int:
        """Transactions that were made again: a deadlock, a lock that was not to be had, a lost connection."""
        return sum(max(0, counts[1] - counts[0]) for counts in self.calls.values())

    @classmethod
    def between(cls, before: Snapshot, after: Snapshot) -> Cost:
        """Of the same processes."""
        calls = {
            name: [now - then for now, then in zip(counts, before.calls.get(name, (0, 0, 0)), strict=True)]
            for name, counts in after.calls.items()
        }
        grown = {
            name: getattr(after, name) - getattr(before, name)
            for name in (
                "clients_s", "server_s", "people_s", "wal", "statements", "transactions", "deadlocks",
            )
        }  # fmt: skip
        return cls(took_s=after.at - before.at, calls=calls, **grown)


class DaemonEnded(Exception):
    """A daemon has ended by itself, or did not begin: this machine is too busy for its lease, or it has a defect."""


class Scenario:
    """
    Made by `opened`.

    Args:
        accounts: How many there are, whatever the number of daemons: they share them.
        model_s: How long the model takes.
        turns: How many turns a daemon has in hand at most.
    """

    def __init__(
        self, folder: Path, server: PostgresServer, *, accounts: int, model_s: float, turns: int
    ) -> None:
        self.folder, self.server = folder, server
        self.accounts = [f"scale{number}" for number in range(accounts)]
        self.model_s, self.turns = model_s, turns
        self.url = server.with_tables()
        self._people: People | None = None
        self._exchange = Exchange(folder / "exchange", lambda *words: self.people.hear(*words))
        self._daemons: list[Daemon] = []
        self._made: dict[str, Daemon] = {}
        self._seeded = 0
        self.admin = server.admin(self.url.rpartition("/")[2])
        self.counts_statements = "pg_stat_statements" in str(
            self.admin.execute("SELECT current_setting('shared_preload_libraries')").fetchone()
        )
        if self.counts_statements:
            self.admin.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    @property
    def people(self) -> People:
        """Whoever talks."""
        if self._people is None:
            self._people = People(self._exchange.say)
        return self._people

    @property
    def repeated(self) -> int:
        """How often something was sent once more under its key."""
        return self._exchange.repeated

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, *, accounts: int, model_s: float, turns: int, statements: bool = True
    ) -> AsyncIterator[Scenario]:
        """
        A new one, whose server syncs as in life.

        Raises:
            ToolsMissing: PostgreSQL is not here.
        """
        settings = {"shared_buffers": "128MB", "max_wal_size": "4GB"}
        if statements and PostgresServer.has_library("pg_stat_statements"):
            settings["shared_preload_libraries"] = "pg_stat_statements"
        with tempfile.TemporaryDirectory(prefix="squidbot-scale-") as folder:
            with PostgresServer.start(fsync=True, settings=settings) as server:
                world = cls(Path(folder), server, accounts=accounts, model_s=model_s, turns=turns)
                await world._exchange.start()
                try:
                    yield world
                finally:
                    world._exchange.close()
                    for daemon in world._made.values():
                        daemon.__exit__(None, None, None)
                    world.admin.close()

    def places(self, sessions: int) -> list[tuple[str, str]]:
        """So many conversations, by turns of each account."""
        return [(self.accounts[number % len(self.accounts)], f"dm-p{number}") for number in range(sessions)]

    @asynccontextmanager
    async def daemons(self, count: int, **plan: Any) -> AsyncIterator[None]:
        """One daemon, and so many less one that stand by; they are stopped in order at the end."""
        every = self._daemons = [self._daemon(f"home{number}", plan) for number in range(count)]
        try:
            try:
                for daemon in every:
                    daemon.start()
                    await to_thread.run_sync(lambda: _ready(every[0]))
            except (AssertionError, TimeoutError) as error:
                raise DaemonEnded(self.logs()) from error
            yield
            if any(daemon.process is None or daemon.process.poll() is not None for daemon in every):
                raise DaemonEnded(self.logs())
        finally:
            self._daemons = []
            for daemon in every:
                with contextlib.suppress(ProcessLookupError):
                    daemon.terminate()
            for daemon in every:
                await to_thread.run_sync(lambda daemon=daemon: daemon.ended(within_s=60))

    def _daemon(self, name: str, plan: Mapping[str, Any]) -> Daemon:
        daemon = self._made.get(name) or Daemon(self.folder / name, self._settings())
        self._made[name] = daemon
        daemon.module = "tests.scale.daemon"
        made = {
            "socket": str(self.folder / "exchange"),
            "accounts": self.accounts,
            "model_s": self.model_s,
        }
        daemon.environment = {PLAN: json.dumps(made | plan)}
        return daemon

    def _settings(self) -> dict[str, Any]:
        return {
            "gateway": {
                "store": self.url,
                "state_key": "a-state-key-of-the-tests",
                "max_concurrent_turns": self.turns,
            },
            "llm": {
                "models": {"echo": {"model": "demo/echo"}},
                "pools": {"main": ["echo"]},
                "default_pool": "main",
            },
            "agents": {"heartbeat": {"enabled": False}},
        }

    def is_unseeded(self, sessions: int) -> bool:
        """Whether `seed` would do something."""
        return self._seeded < sessions

    async def seed(self, sessions: int, *, said: int) -> None:
        """
        Have that many conversations been there before, each with ``said`` messages and answers.

        The first one of each account is held by the real daemon; the others are copies of its rows.
        """
        if self._seeded >= sessions:
            return
        if not self._seeded:
            for _ in range(said):
                for account in self.accounts:
                    _, event = self.people.ask((account, _SEED))
                    with anyio.fail_after(60):
                        await event.wait()
            await self.settled()
        begin = self._seeded // len(self.accounts)
        end = -(-sessions // len(self.accounts))
        # Nobody waits for a signal of what is over: triggers are left out.
        self.admin.execute("SET session_replication_role = replica")
        for number, account in enumerate(self.accounts):
            for text in _copies(self.admin):
                self.admin.execute(
                    text,
                    {
                        "old": f"{account}/{_SEED}", "channel": account, "begin": begin, "end": end - 1,
                        "step": len(self.accounts), "first": number, "seed": _SEED,
                    },
                )  # fmt: skip
        self.admin.execute("SET session_replication_role = DEFAULT")
        self._seeded = sessions
        self.admin.execute("VACUUM ANALYZE")

    async def settled(self, *, within_s: float = 60.0) -> tuple[int, int, int, int]:
        """
        Wait until nothing is open; how many rows are open of inbox and outbox, and how many ended badly of each.
        """
        await self.people.quiet(within_s=within_s)
        with anyio.move_on_after(within_s):
            while (found := self._left())[:2] != (0, 0):
                await anyio.sleep(0.1)
            return found
        return self._left()

    def _left(self) -> tuple[int, int, int, int]:
        found = self.admin.execute(_OPEN).fetchone()
        assert found is not None
        return tuple(found)

    async def snapshot(self) -> Snapshot:
        """Everything that only grows, now."""
        calls: dict[str, list[int]] = {}
        for counts in (await self._exchange.counts()).values():
            for name, each in counts.items():
                calls[name] = [one + more for one, more in zip(calls.get(name, (0, 0, 0)), each, strict=True)]
        row = self.admin.execute(
            "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, xact_commit + xact_rollback, deadlocks"
            " FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
        assert row is not None
        return Snapshot(
            at=time.monotonic(),
            clients_s=_cpu_s_of(self._daemons),
            server_s=server_cpu_s(self.server),
            people_s=sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
            wal=int(row[0]),
            transactions=int(row[1]),
            deadlocks=int(row[2]),
            statements=self._statements(),
            calls=calls,
        )

    def _statements(self) -> int:
        if not self.counts_statements:
            return 0
        # What is said here is none of the daemons'.
        found = self.admin.execute(
            "SELECT COALESCE(sum(calls), 0) FROM pg_stat_statements AS s JOIN pg_roles AS r ON r.oid = s.userid"
            " WHERE r.rolname = 'squidbot' AND s.toplevel"
        ).fetchone()
        return int(found[0]) if found is not None else 0

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(daemon.log()[-2000:] for daemon in self._made.values())


def _ready(daemon: Daemon) -> None:
    daemon.wait_until(lambda: daemon.asked("/readyz")[0] == 200, within_s=_BEGUN_WITHIN_S)


def cpu_s(pid: int) -> float:
    """The processor time of a process that lives, with that of children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _cpu_s_of(daemons: Sequence[Daemon]) -> float:
    return sum(cpu_s(daemon.process.pid) for daemon in daemons if daemon.process)


def server_cpu_s(server: PostgresServer) -> float:
    """The processor time of all of a server's processes."""
    return sum(map(cpu_s, server.processes()))


_COLUMNS = (
    "SELECT column_name FROM information_schema.columns"
    " WHERE table_schema = 'squidbot' AND table_name = %s ORDER BY ordinal_position"
)
_NUMBERS = "generate_series(%(begin)s::bigint, %(end)s::bigint) AS n"
_NEW = "'dm-p' || (n * %(step)s + %(first)s)"
_OF = {
    "session": f"%(channel)s || '/' || {_NEW}",
    "payload": f"replace(o.payload, %(seed)s, {_NEW})",
    "native_id": "o.native_id || ':' || n",
    "turn": "o.turn || ':' || n",
    "key": "o.key || ':' || n",
    "provider_id": "o.provider_id || ':' || n",
}


def _copies(db: psycopg.Connection[Any]) -> Iterator[str]:
    """The statements that copy the rows of a conversation to others."""
    for table in ("inbox", "outbox", "history"):
        names = [str(name) for (name,) in db.execute(_COLUMNS, (f"all_{table}",)).fetchall()]
        names = [name for name in names if name != "id"]
        values = [_OF.get(name, f"o.{name}") for name in names]
        joined, order = "", "o.seq" if table == "history" else "o.id"
        if table == "outbox":
            values[names.index("inbox_id")] = "i.id"
            joined = (
                " JOIN squidbot.all_inbox AS s ON s.home = o.home AND s.id = o.inbox_id"
                " JOIN squidbot.all_inbox AS i ON i.home = s.home AND i.channel = s.channel AND i.account = s.account"
                " AND i.native_id = s.native_id || ':' || n"
            )
        yield (
            f"INSERT INTO squidbot.all_{table} ({', '.join(names)}) SELECT {', '.join(values)}"
            f" FROM squidbot.all_{table} AS o CROSS JOIN {_NUMBERS}{joined} WHERE o.session = %(old)s ORDER BY n, {order}"
        )
