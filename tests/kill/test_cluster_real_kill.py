"""
Three real daemons on one PostgreSQL, between a real Synapse with encrypted rooms and a real mail server: killed, frozen
for longer than the lease, cut off from the database, with the database restarted under them.

`SQUIDBOT_CLUSTER_KILLS` says how many kills there are in all, else `SQUIDBOT_KILLS` does; each test has ten of them.
`SQUIDBOT_CLUSTER_TAKEOVERS` says how many takeovers there are with the default lease. `SQUIDBOT_CLUSTER_REPORT` names a file for their figures.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.store.lease import LeaseTimes
from tests.kill.cluster_world import ACCOUNTS, MACHINES, Cluster
from tests.kill.conftest import random_kills
from tests.kill.late_daemon import SHIFT_VARIABLE
from tests.kill.takeover_daemon import DEFAULT, KEEPS_KEYS, LEASE, LEASE_VARIABLE
from tests.kill.tally import chance as chance_of
from tests.postgres_server import PostgresServer

KILLS_EACH = 10
ROUNDS = max(1, int(os.environ.get("SQUIDBOT_CLUSTER_KILLS", random_kills()[1])) // KILLS_EACH)
TAKEOVERS = int(os.environ.get("SQUIDBOT_CLUSTER_TAKEOVERS", "1"))
pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]


@pytest.fixture(scope="module")
def cluster_server() -> Iterator[PostgresServer]:
    """It is killed in some of the tests."""
    with PostgresServer.start(fsync=True) as server:
        yield server


@pytest.mark.parametrize("number", range(ROUNDS))
def test_any_process_may_die_at_any_moment(cluster: Cluster, number: int) -> None:
    chance = chance_of(f"real cluster {number}")
    if number % 3 == 2:
        late = chance.choice(MACHINES)
        cluster.daemons[late].environment = {SHIFT_VARIABLE: str(chance.choice([-600, 600]))}
    cluster.up()
    while cluster.kills < KILLS_EACH:
        cluster.chatter(chance)
        time.sleep(chance.uniform(0, 2.0))
        what = chance.choices(
            ["owner", "any", "two", "freeze", "stop", "terminate", "restart", "cut", "silent"],
            [4, 3, 1, 1, 1, 1, 1, 1, 1],
        )[0]
        awake = cluster.awake()
        print(f"{time.monotonic():.1f} {what} {awake} {cluster.kills}", flush=True)
        match what:
            case "owner":
                took = cluster.taken_over(chance.choice(ACCOUNTS))
                print(f"taken over in {took}", flush=True)
            case "any" if awake:
                cluster.kill(chance.choice(awake))
            case "two" if len(awake) > 1:
                for victim in chance.sample(awake, 2):
                    cluster.kill(victim)
            case "freeze" if awake:
                joins = chance.choice(MACHINES)
                victim = chance.choice(awake)
                if joins != victim and joins in awake:
                    cluster.kill(joins)
                cluster.freeze(victim)
                cluster.restarted(*(other for other in MACHINES if other != victim))
                cluster.chatter(chance)
                time.sleep(LEASE.ttl_s * chance.uniform(0.3, 1.6))
                cluster.thaw()
            case "stop" if awake:
                cluster.daemons[chance.choice(awake)].terminate()
            case "terminate":
                with cluster.server.admin() as db:
                    pids = db.execute(
                        "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                        (cluster.database,),
                    ).fetchall()
                    for (pid,) in pids:
                        db.execute("SELECT pg_terminate_backend(%s)", (pid,))
                        time.sleep(chance.uniform(0, 0.05))
            case "restart":
                cluster.server.kill()
                cluster.chatter(chance)
                time.sleep(chance.choice([0.3, 3.0, LEASE.ttl_s + 2]))
                cluster.server.begin()
            case "cut" | "silent":
                link = chance.choice(cluster.links)
                link.cut() if what == "cut" else link.fall_silent()
                cluster.chatter(chance)
                time.sleep(LEASE.ttl_s * chance.uniform(0.2, 1.4))
                link.go_on()
        if chance.random() < 0.7 or not cluster.awake():
            cluster.restarted()
    cluster.thaw()
    cluster.quiet()
    cluster.end()
    told = {
        "round": number,
        "kills": cluster.kills,
        "freezes": cluster.freezes,
        "said": len(cluster.said),
        "takeovers": [round(took, 1) for took in cluster.takeovers],
        "codes": {code: cluster.codes.count(code) for code in set(cluster.codes)},
    }
    print(json.dumps(told))
    if report := os.environ.get("SQUIDBOT_CLUSTER_REPORT"):
        with Path(report).open("a") as file:
            file.write(json.dumps(told) + "\n")
    assert cluster.problems() == [], cluster.logs()


@pytest.mark.timeout(300 + 120 * TAKEOVERS, func_only=True)
def test_who_waits_when_a_daemon_dies_waits_for_its_lease_and_a_moment(cluster: Cluster) -> None:
    """With the times that a daemon has by default; from the kill to the answer of another daemon."""
    chance = chance_of("default lease")
    for daemon in cluster.daemons:
        daemon.environment = {LEASE_VARIABLE: DEFAULT}
    cluster.up()
    while len(cluster.takeovers) < TAKEOVERS:
        account = chance.choice(ACCOUNTS)
        time.sleep(chance.uniform(0, LeaseTimes().renewed_s))
        print(f"{account} taken over in {cluster.taken_over(account)}", flush=True)
    cluster.quiet()
    cluster.end()
    took = sorted(round(took, 1) for took in cluster.takeovers)
    print(json.dumps({"takeovers": took, "said": len(cluster.said), "kills": cluster.kills}))
    assert took[-1] < LeaseTimes().ttl_s + 5, (took, cluster.logs())
    assert cluster.problems() == [], cluster.logs()


def test_the_oracle_finds_out_keys_that_have_stayed_on_one_machine(cluster: Cluster) -> None:
    """The control: without them the next machine can neither read nor be read."""
    for daemon in cluster.daemons:
        daemon.environment = {KEEPS_KEYS: "1"}
    cluster.up(0)
    cluster.kill(0)
    for _ in range(3):
        cluster.say("matrix")
        cluster.say("email")
    deadline = time.monotonic() + 60
    cluster.until(
        lambda: (
            (cluster.restarted(1) and (len(cluster.seen("email")) == 4 and len(cluster.seen("matrix")) >= 4))
            or time.monotonic() > deadline
        )
    )
    assert any(problem.startswith("matrix") for problem in cluster.problems())
