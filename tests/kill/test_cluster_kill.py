"""
Several gateways on one database and three accounts: killed, frozen for longer than their lease, stopped, started again at random
moments, the server too. The oracle is what people have received, and what stands in the histories.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from channels.base import Redelivery
from tests.doubles.loopback import FileLoopbackServer
from tests.kill.gateway_child import Run
from tests.kill.oracle import Evidence, Saying, problems
from tests.kill.scenario import Nursery
from tests.kill.scripted import numbers_in
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]
LEASE_S = 6.0
TEMPORARY = 75
ACCOUNTS = ("loopback", "loopback1", "loopback2")
PEOPLE = ("ann", "bob")


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    """One for each machine."""
    with Nursery() as one, Nursery() as two, Nursery() as three:
        yield [one, two, three]


class Cluster:
    """
    Three machines, three accounts, one database.

    Args:
        url: Of a database with tables; by default a new one of the server's.
        **run: What all lives have in common besides, see `Run`.
    """

    def __init__(
        self,
        folder: Path,
        nurseries: list[Nursery],
        server: PostgresServer,
        policy: str = "probe",
        accounts: Sequence[str] = ACCOUNTS,
        url: str = "",
        **run: Any,
    ) -> None:
        self.folder, self.database = folder, server
        self.url = url or server.with_tables()
        ours = {"lease_s": LEASE_S, "stays": True, "pause_s": 0.1, "kill_after_s": 500}
        self.run = Run(
            folder=str(folder), policy=policy, store=self.url, accounts=len(accounts), **{**ours, **run}
        )
        self.servers = {
            name: FileLoopbackServer(
                folder / name.replace(accounts[0], "server"), redelivery=Redelivery(policy)
            )
            for name in accounts
        }
        self.kills = self.freezes = 0
        self.ended: list[int] = []
        self.frozen: set[int] = set()
        self._terminated: set[int] = set()
        self._nurseries = nurseries
        for nursery in nurseries:
            nursery.begin()
        self._threads = ThreadPoolExecutor(len(nurseries))
        self._lives: dict[int, Future[int]] = {}
        self._sayings: list[Saying] = []

    def begin(self, machine: int, **changes: object) -> None:
        """Start the gateway of a machine and wait until it has a process."""
        number = self.folder / f"home{machine}.pid"
        number.unlink(missing_ok=True)
        run = replace(self.run, home=f"home{machine}", **changes)  # type: ignore[arg-type]
        self._lives[machine] = self._threads.submit(self._nurseries[machine].live, run)
        self._terminated.discard(machine)
        self.until(lambda: number.exists() and bool(number.read_text()))

    def living(self) -> list[int]:
        """The machines whose gateway has not ended; those that have are forgotten."""
        for machine, life in list(self._lives.items()):
            if life.done():
                self.ended.append(life.result())
                del self._lives[machine]
                self.frozen.discard(machine)
        return sorted(self._lives)

    def signal(self, machine: int, number: signal.Signals) -> None:
        """Send a signal to the gateway of a machine."""
        if number is signal.SIGTERM:
            self._terminated.add(machine)
        os.kill(int((self.folder / f"home{machine}.pid").read_text()), number)

    def kill(self, machine: int) -> None:
        """SIGKILL, and wait for the end."""
        with contextlib.suppress(ProcessLookupError):  # on a busy machine it may just have lost its lease
            self.signal(machine, signal.SIGKILL)
        code = self._lives[machine].result(60)
        assert code in {-signal.SIGKILL, TEMPORARY} | (
            {0, -signal.SIGTERM} if machine in self._terminated else set()
        )
        TALLY["of one of several gateways"] += code == -signal.SIGKILL
        self.kills += code == -signal.SIGKILL
        self.living()

    def freeze(self, machine: int) -> None:
        """SIGSTOP."""
        self.signal(machine, signal.SIGSTOP)
        self.frozen.add(machine)
        self.freezes += 1

    def thaw(self) -> None:
        """SIGCONT for all that are frozen."""
        for machine in list(self.frozen):
            with contextlib.suppress(
                ProcessLookupError
            ):  # it had just lost its lease when it was to be frozen
                self.signal(machine, signal.SIGCONT)
            self.frozen.discard(machine)

    def say(self, account: str, person: str, words: str = "") -> int:
        """Somebody says the next message."""
        number = len(self._sayings) + 1
        place = f"dm-{person}"
        self.servers[account].say(
            person, f"#{number} {words}".strip(), conversation=place, native_id=f"$say-{number}"
        )
        self._sayings.append(Saying(number, f"{account}/{place}", words, f"person:{person}"))
        return number

    def chatter(self, chance: random.Random) -> None:
        """A few messages by any account."""
        for _ in range(chance.randint(1, 4)):
            self.say(
                chance.choice(ACCOUNTS), chance.choice(PEOPLE), chance.choice(["", "", "effect", "slow"])
            )

    def seen(self) -> list[tuple[str, str]]:
        """What people see, by account and conversation."""
        for server in self.servers.values():
            server.refresh()
        return [
            (f"{name}/{each.conversation}", each.text)
            for name, server in self.servers.items()
            for each in server.seen()
        ]

    def answered(self) -> set[int]:
        """The numbers of what is answered."""
        return {number for _, text in self.seen() for number in numbers_in(text)}

    def until(self, condition: Callable[[], bool], within_s: float = 90) -> float:
        """Wait for something; returns how long it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < within_s, self.log()[-6000:]
            time.sleep(0.03)
        return time.monotonic() - began

    def daemon(self) -> str:
        """The home whose gateway has the lease, from the outside; empty: nobody known."""
        homes = {
            (self.folder / f"home{machine}.pid").read_text(): f"home{machine}" for machine in self._lives
        }
        query = "SELECT holder FROM squidbot.all_leases WHERE name = 'daemon' AND holder IS NOT NULL"
        with psycopg.connect(self.url) as db:
            found = db.execute(query).fetchone()
        return "" if found is None else homes.get(found[0].split("/")[1], "")

    def restart(self, *machines: int) -> bool:
        """Start what has ended, as a service manager does; returns whether all had been running."""
        ended = [machine for machine in machines if machine not in self.living()]
        for machine in ended:
            self.begin(machine)
        return not ended

    def quiet(self, *machines: int) -> None:
        """Wait until everything is answered and nothing is open; these gateways are kept running meanwhile."""
        numbers = {saying.number for saying in self._sayings}
        self.until(lambda: self.restart(*machines) and self.answered() >= numbers, 150)
        open_rows = (
            "SELECT (SELECT count(*) FROM squidbot.all_inbox WHERE state IN ('ready', 'running'))"
            " + (SELECT count(*) FROM squidbot.all_outbox WHERE state IN ('pending', 'sending', 'uncertain'))"
        )
        with psycopg.connect(self.url, autocommit=True) as db:
            self.until(lambda: db.execute(open_rows).fetchone() == (0,))

    def end(self) -> None:
        """Stop all in order."""
        for machine in self.living():
            self.signal(machine, signal.SIGTERM)
        for life in list(self._lives.values()):
            assert life.result(60) in (0, -signal.SIGTERM), self.log()[-6000:]
        self._threads.shutdown()

    def close(self) -> None:
        """Kill what still lives, and wait until nobody reads the answers of its machines any more."""
        for machine, life in self._lives.items():
            if not life.done():
                self.signal(machine, signal.SIGKILL)
        if wait(self._lives.values(), 30).not_done:
            for nursery in self._nurseries:
                nursery.close()
        self._threads.shutdown()

    def log(self) -> str:
        """What the gateways have logged."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def problems(self) -> list[str]:
        """Everything that is wrong; empty if every promise was kept."""
        effects = self.folder / "effects"
        query = "SELECT session, line FROM squidbot.all_history ORDER BY session, seq"
        histories: dict[str, list[bytes]] = {}
        with psycopg.connect(self.url) as db:
            for session, line in db.execute(query).fetchall():
                histories.setdefault(str(session), []).append(str(line).encode())
        return problems(
            Evidence(
                said=self._sayings,
                seen=self.seen(),
                effects=[int(line) for line in effects.read_text().split()] if effects.exists() else [],
                histories=histories,
                deaths=self.kills + self.freezes + len(self.ended),
            )
        )


@pytest.fixture
def cluster(nurseries: list[Nursery], postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    """Its machines are off; what is left at the end is killed."""
    made = Cluster(tmp_path, nurseries, postgres)
    try:
        yield made
    finally:
        made.close()


def test_a_standby_takes_over_after_a_kill_and_after_an_end_in_order(cluster: Cluster) -> None:
    """
    One has all accounts, the others none. When it is killed, another one has them within the lease and five
    seconds, from the message to its answer; when that ends in order, the third one has them at once. The kill
    of one that stands by changes nothing.
    """
    for machine in range(3):
        cluster.begin(machine)
        cluster.until(lambda: cluster.daemon() == "home0")
    cluster.kill(1)
    for account in ACCOUNTS:
        cluster.say(account, "ann")
    cluster.until(lambda: cluster.answered() >= {1, 2, 3})
    cluster.begin(1)
    cluster.kill(0)
    number = cluster.say(ACCOUNTS[0], "ann")
    took = cluster.until(lambda: number in cluster.answered())
    print(f"taken over in {took:.1f} s, lease {LEASE_S:g} s")
    assert took < LEASE_S + 5
    daemon = int(cluster.daemon().removeprefix("home"))
    cluster.signal(daemon, signal.SIGTERM)
    number = cluster.say(ACCOUNTS[1], "bob")
    print(f"handed over in {cluster.until(lambda: number in cluster.answered()):.1f} s")
    cluster.quiet()
    cluster.end()
    assert cluster.problems() == []


@pytest.mark.parametrize("control", ["", "goes_on"])
def test_a_third_one_joins_while_one_is_frozen_in_a_send(cluster: Cluster, control: str) -> None:
    """It wakes after its lease has ended and sends nothing. The control has no end, and the oracle finds it out."""
    cluster.begin(0, trace=True, send_s=15.0, control=control)
    for person in PEOPLE:
        cluster.say("loopback", person)
    trace = cluster.folder / "trace"
    cluster.until(lambda: trace.exists() and "uncertain" in trace.read_text())
    cluster.freeze(0)
    cluster.begin(1)
    cluster.begin(2)
    cluster.say("loopback1", "ann")
    cluster.quiet(1, 2)
    cluster.thaw()
    if control:
        cluster.until(lambda: bool(cluster.problems()))
        assert any("answered 2 times" in problem for problem in cluster.problems())
        return
    cluster.until(lambda: 0 not in cluster.living())
    assert set(cluster.ended) == {TEMPORARY}
    cluster.begin(0)
    cluster.say("loopback", "ann")
    cluster.quiet(0, 1, 2)
    cluster.end()
    assert cluster.problems() == []


def test_the_server_is_killed_and_comes_back_under_several(nurseries: list[Nursery], tmp_path: Path) -> None:
    """For a moment, and for longer than the lease, when all end; whoever starts them again is a service manager."""
    with PostgresServer.start(fsync=True) as server:
        cluster, chance = Cluster(tmp_path, nurseries, server), chance_of("server of a cluster")
        try:
            for away_s in (0.3, LEASE_S + 1, 1.0, 0.3):
                cluster.restart(0, 1, 2)
                cluster.chatter(chance)
                time.sleep(chance.uniform(0.5, 2.0))
                server.kill()
                cluster.chatter(chance)
                if chance.random() < 0.5 and cluster.living():
                    cluster.kill(cluster.living()[0])
                time.sleep(away_s)
                server.begin()
            cluster.quiet(0, 1, 2)
            cluster.end()
            assert cluster.problems() == []
        finally:
            cluster.close()


@pytest.mark.parametrize("seed", range(2))
def test_any_of_several_may_die_at_any_moment(cluster: Cluster, seed: int) -> None:
    """Kills, freezes beyond the lease with a third one joining, ends in order, while people talk by three accounts."""
    chance = chance_of(f"cluster {seed}")
    for machine in range(2):
        cluster.begin(machine)
    while cluster.kills < 20 or cluster.freezes < 2:
        cluster.chatter(chance)
        time.sleep(chance.uniform(0.1, 1.0))
        living = cluster.living()
        up = [machine for machine in living if machine not in cluster.frozen]
        down = [machine for machine in range(3) if machine not in living]
        what = chance.random()
        if what < 0.62 and up:
            for machine in chance.sample(up, k=min(len(up), chance.choice([1, 1, 1, 2]))):
                cluster.kill(machine)
        elif what < 0.70 and up and not cluster.frozen:
            cluster.freeze(chance.choice(up))
            for machine in down[:1]:
                cluster.begin(machine)
            cluster.chatter(chance)
            time.sleep(LEASE_S * 1.3)
            cluster.thaw()
        elif what < 0.76 and up:
            cluster.signal(chance.choice(up), signal.SIGTERM)
        for machine in range(3):
            if machine not in cluster.living() and (chance.random() < 0.6 or not cluster.living()):
                cluster.begin(machine)
    cluster.thaw()
    cluster.quiet(0, 1)
    cluster.end()
    print(json.dumps({"kills": cluster.kills, "freezes": cluster.freezes, "said": len(cluster._sayings)}))
    assert cluster.problems() == []
