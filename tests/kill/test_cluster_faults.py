"""
Three gateways on one database and what happens around them: a clock that is wrong, a server that is away, restarted,
replaced by its replica, or has a full disk, connections that are ended one by one, and one who says more than all others.

The oracle is what people have received. `SQUIDBOT_CLUSTER_AWAY_S` says for how long the server is away,
`SQUIDBOT_CLUSTER_FLOOD` how much is said in one conversation, `SQUIDBOT_KILLS` how many processes die.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.operations.backup.restore import accept_restored_server
from gateway.store.lease import LeaseTaken
from gateway.system.clock import SystemClock
from gateway.system.home import Home
from tests.kill.conftest import random_kills
from tests.kill.database_link import DatabaseLink
from tests.kill.scenario import Nursery
from tests.kill.tally import chance as chance_of
from tests.kill.test_cluster_kill import ACCOUNTS, TEMPORARY, Cluster
from tests.postgres_server import ADMIN, PASSWORD, ROLE, PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(900)]
MACHINES = range(3)
KILLS = max(5, random_kills()[1])
AWAY_S = float(os.environ.get("SQUIDBOT_CLUSTER_AWAY_S", "10"))
FLOOD = int(os.environ.get("SQUIDBOT_CLUSTER_FLOOD", "200"))
UNUSABLE = 78


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    """One for each machine."""
    with Nursery() as one, Nursery() as two, Nursery() as three:
        yield [one, two, three]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """It is ended in some of the tests."""
    with PostgresServer.start(fsync=True) as started:
        yield started


@pytest.fixture
def cluster(nurseries: list[Nursery], server: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    """Its machines are off; what is left at the end is killed."""
    made = Cluster(tmp_path, nurseries, server)
    try:
        yield made
    finally:
        made.close()


def ended_well(cluster: Cluster, **told: object) -> None:
    """Everybody has what was promised."""
    cluster.quiet(*MACHINES)
    cluster.end()
    print(json.dumps({"said": len(cluster._sayings), "kills": cluster.kills, "ended": cluster.ended, **told}))
    assert cluster.problems() == [], cluster.log()[-4000:]


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
def test_a_clock_that_is_ten_minutes_off_changes_nothing(cluster: Cluster, ahead_s: float) -> None:
    """On the machine that has the accounts first; it dies as often as the others, and so does its turn in them."""
    chance = chance_of(f"clock {ahead_s}")
    clocks = {0: ahead_s}

    def begin(machine: int) -> None:
        cluster.begin(machine, clock_ahead_s=clocks.get(machine, 0.0))

    begin(0)
    cluster.chatter(chance)
    for machine in (1, 2):
        begin(machine)
    while cluster.kills < KILLS:
        cluster.chatter(chance)
        time.sleep(chance.uniform(0.1, 1.0))
        if living := cluster.living():
            cluster.kill(0 if 0 in living and chance.random() < 0.5 else chance.choice(living))
        for machine in MACHINES:
            if machine not in cluster.living() and (chance.random() < 0.7 or not cluster.living()):
                begin(machine)
    for machine in MACHINES:
        if machine not in cluster.living():
            begin(machine)
    ended_well(cluster)
    accepted = cluster_rows(cluster, "SELECT min(accepted_at), max(accepted_at) FROM squidbot.all_inbox")
    now = SystemClock().now().timestamp()
    assert all(now - 400 < at < now + 60 for at in accepted[0]), (accepted, now)


def cluster_rows(cluster: Cluster, query: str) -> list[tuple]:
    with psycopg.connect(cluster.url) as db:
        return db.execute(query).fetchall()


def test_the_server_is_away_restarted_killed_and_ends_connections_one_by_one(cluster: Cluster) -> None:
    """In an order of chance; whoever ends because of it is started again, as a service manager does."""
    chance = chance_of("faults of the server")
    faults: list[Callable[[], None]] = [
        lambda: away(cluster, chance, AWAY_S),
        lambda: away(cluster, chance, chance.uniform(0.2, 1.0)),
        cluster.database.restart,
        lambda: terminated(cluster, chance),
        lambda: terminated(cluster, chance),
    ]
    chance.shuffle(faults)
    for fault in faults:
        cluster.restart(*MACHINES)
        cluster.until(lambda: cluster.daemon() != "")
        cluster.chatter(chance)
        time.sleep(chance.uniform(0.0, 0.5))
        fault()
        cluster.chatter(chance)
    ended_well(cluster)
    assert set(cluster.ended) <= {TEMPORARY}


def away(cluster: Cluster, chance: random.Random, for_s: float) -> None:
    """The server is killed, and comes back after this long; people go on to talk."""
    cluster.database.kill()
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        cluster.chatter(chance)
        time.sleep(min(chance.uniform(0.1, 5.0), max(0.0, until - time.monotonic())))
        for machine in [machine for machine in MACHINES if machine not in cluster.living()]:
            if chance.random() < 0.3:
                cluster.begin(machine)  # in vain
    cluster.database.begin()


def terminated(cluster: Cluster, chance: random.Random) -> None:
    """The server ends each connection, one after the other, at moments of chance."""
    name = cluster.url.rpartition("/")[2]
    with cluster.database.admin() as db:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        for (pid,) in db.execute(query, (name,)).fetchall():
            if chance.random() < 0.3:
                cluster.chatter(chance)
            time.sleep(chance.uniform(0, 0.05))
            db.execute("SELECT pg_terminate_backend(%s)", (pid,))


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server on a disk of its own."""
    new_folder = PostgresServer._new_folder
    made: list[Path] = []

    def mounted() -> Path:
        folder = new_folder()
        owner = folder.stat()
        options = f"size=200m,mode=0755,uid={owner.st_uid},gid={owner.st_gid}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            folder.rmdir()
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        made.append(folder)
        return folder

    monkeypatch.setattr(PostgresServer, "_new_folder", staticmethod(mounted))
    try:
        settings = {"min_wal_size": "32MB", "max_wal_size": "48MB"}
        with PostgresServer.start(fsync=True, settings=settings) as server:
            yield server
    finally:
        for folder in made:
            subprocess.run(["umount", "-l", str(folder)], check=True)
            folder.rmdir()


def test_the_disk_of_the_server_is_full(
    nurseries: list[Nursery], small_disk: PostgresServer, tmp_path: Path
) -> None:
    """People go on to talk; nothing is accepted that is not kept. It may end the server, which is started again."""
    cluster, chance = Cluster(tmp_path, nurseries, small_disk), chance_of("full disk")
    try:
        for machine in MACHINES:
            cluster.begin(machine)
        cluster.until(lambda: cluster.daemon() != "")
        cluster.chatter(chance)
        ballast = small_disk.folder / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65_536))
        refused = "the disk of the database server is full"
        until = time.monotonic() + 60
        while time.monotonic() < until and not (refused in cluster.log() and time.monotonic() > until - 50):
            cluster.chatter(chance)
            time.sleep(0.2)
        assert refused in cluster.log(), cluster.log()[-4000:]
        ballast.unlink()
        with contextlib.suppress(psycopg.OperationalError):
            small_disk.admin(connect_timeout=5).close()
        if small_disk.child is None or not small_disk.child.alive:
            small_disk.kill()
            small_disk.begin()
        ended_well(cluster)
        assert set(cluster.ended) <= {TEMPORARY}
    finally:
        cluster.close()


def test_a_replica_takes_over(nurseries: list[Nursery], server: PostgresServer, tmp_path: Path) -> None:
    """
    Both hosts stand in the URL. Whoever runs goes on, and whoever begins, too: commits have waited for the replica. One
    of the processes dies with the server, the active one dies after the promotion.
    """
    chance = chance_of("replica")
    database = server.with_tables().rpartition("/")[2]
    with PostgresServer.replica_of(server) as replica:
        server.confirmed_by_replica()
        hosts = f"127.0.0.1:{server.port},127.0.0.1:{replica.port}"
        url = f"postgresql://{ROLE}:{PASSWORD}@{hosts}/{database}?target_session_attrs=read-write"
        cluster = Cluster(tmp_path, nurseries, server, url=url)
        try:
            for machine in MACHINES:
                cluster.begin(machine)
            cluster.until(lambda: cluster.daemon() != "")
            for _ in range(3):
                cluster.chatter(chance)
                time.sleep(chance.uniform(0.1, 0.6))
            server.kill()
            cluster.kill(chance.choice(MACHINES))
            cluster.chatter(chance)
            replica.promote()
            cluster.chatter(chance)
            cluster.until(lambda: cluster.answered() >= {saying.number for saying in cluster._sayings})
            assert len(cluster.living()) == 2, cluster.ended
            [dead] = [machine for machine in MACHINES if machine not in cluster.living()]
            cluster.begin(dead)
            cluster.until(lambda: cluster.daemon() != "")
            cluster.kill(int(cluster.daemon().removeprefix("home")))
            cluster.restart(*MACHINES)
            cluster.chatter(chance)
            ended_well(cluster)
        finally:
            cluster.close()


def test_a_replica_that_lacks_the_last_commits_is_left_alone_until_a_person_has_spoken(
    nurseries: list[Nursery], server: PostgresServer, tmp_path: Path
) -> None:
    """
    No commit waits for it. Whoever runs ends and writes nothing there, although messages come; a start is refused. With
    what a person says about it, nobody is answered twice, and what comes once more waits. The test above is the control.
    """
    chance = chance_of("late replica")
    database = server.with_tables().rpartition("/")[2]
    with DatabaseLink(server.port) as link, PostgresServer.replica_of(server) as replica:
        with replica.admin() as db:
            way = f"host=127.0.0.1 port={link.port} user={ADMIN} password={PASSWORD}"
            db.execute(f"ALTER SYSTEM SET primary_conninfo = '{way}'")
            db.execute("SELECT pg_reload_conf()")
        hosts = f"127.0.0.1:{server.port},127.0.0.1:{replica.port}"
        url = f"postgresql://{ROLE}:{PASSWORD}@{hosts}/{database}?target_session_attrs=read-write"
        cluster = Cluster(tmp_path, nurseries, server, url=url)

        def there() -> int:
            with psycopg.connect(replica.url(database)) as db:
                (count,) = db.execute("SELECT count(*) FROM squidbot.all_inbox").fetchone()  # type: ignore[misc]
            return int(count)

        def all_answered() -> bool:
            return cluster.answered() >= {saying.number for saying in cluster._sayings}

        try:
            for machine in MACHINES:
                cluster.begin(machine)
            cluster.until(lambda: cluster.daemon() != "")
            for _ in range(3):
                cluster.chatter(chance)
            cluster.until(lambda: all_answered() and there() == len(cluster._sayings))
            known = there()
            link.fall_silent()
            while len(cluster._sayings) < known + 5:
                cluster.chatter(chance)
            cluster.until(all_answered)
            server.kill()
            link.cut()
            replica.promote()
            cluster.chatter(chance)
            cluster.until(lambda: not cluster.living(), 90)
            assert set(cluster.ended) <= {TEMPORARY, UNUSABLE}, cluster.log()[-3000:]
            assert there() == known
            cluster.begin(0)
            cluster.until(lambda: not cluster.living())
            assert cluster.ended[-1] == UNUSABLE, cluster.log()[-3000:]

            def told() -> bool:
                now = SystemClock().now()
                with contextlib.suppress(LeaseTaken):  # the leases of the dead end first
                    accept_restored_server(Home(tmp_path / "home0"), url, now=now, until=now, moved=False)
                    return True
                return False

            cluster.until(told)
            cluster.restart(*MACHINES)
            before = len(cluster._sayings)
            cluster.chatter(chance)
            new = {saying.number for saying in cluster._sayings[before:]}
            cluster.until(lambda: cluster.restart(*MACHINES) and cluster.answered() >= new, 90)
            lost = ("no answer to", "the history ", "the tool did not run")  # with the old server, or waits
            wrong = [each for each in cluster.problems() if not any(words in each for words in lost)]
            assert wrong == []
        finally:
            cluster.close()


def test_one_who_says_more_than_all_others_keeps_nobody_waiting(
    nurseries: list[Nursery], server: PostgresServer, tmp_path: Path
) -> None:
    """
    Most of a conversation is still unanswered when others, by the same account and by other ones, have what they asked
    for, each thing after the other; and the process that has it dies in the middle.
    """
    cluster, chance = Cluster(tmp_path, nurseries, server, pause_s=0.01), chance_of("flood")
    try:
        for machine in MACHINES:
            cluster.begin(machine)
        cluster.until(lambda: cluster.daemon() != "")
        flood = {cluster.say(ACCOUNTS[0], "ann") for _ in range(FLOOD)}
        cluster.until(
            lambda: cluster.servers[ACCOUNTS[0]].acknowledged >= FLOOD if cluster.seen() else False, 600
        )
        waited: list[float] = []
        for number in range(20):
            if number == 10:
                cluster.kill(int(cluster.daemon().removeprefix("home")))
            asked = cluster.say(chance.choice(ACCOUNTS), "bob")
            waited.append(cluster.until(lambda asked=asked: asked in cluster.answered()))  # type: ignore[misc]
        left = len(flood - cluster.answered())
        waited.sort()
        cluster.until(lambda: cluster.restart(*MACHINES) and cluster.answered() >= flood, 60 + FLOOD)
        ended_well(
            cluster, flood=FLOOD, left=left, median_s=round(waited[10], 2), worst_s=round(waited[-1], 2)
        )
        assert left > 0
    finally:
        cluster.close()
