"""
Two workers and a daemon with accounts, any of them killed or frozen for longer than its lease. The oracle is that of
`test_cluster_kill`: what people have received, and what stands in the histories.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.kill.scenario import Nursery
from tests.kill.tally import chance as chance_of
from tests.kill.test_cluster_kill import ACCOUNTS, LEASE_S, TEMPORARY, Cluster
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]
KILLS = int(os.environ.get("SQUIDBOT_WORKER_KILLS", "8"))
"""So many for each seed; the daemon with accounts is machine 0, the workers are 1 and 2."""
LONG_S = 40.0
"""A model's pause that is longer than a lease, see `Run.pause_s`."""


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    """One for each machine."""
    with Nursery() as one, Nursery() as two, Nursery() as three, Nursery() as four:
        yield [one, two, three, four]


class Workers(Cluster):
    """A cluster in which some machines are workers."""

    roles = ("accounts", "worker", "worker", "all")

    def begin(self, machine: int, **changes: object) -> None:
        """Start a machine in its role."""
        super().begin(machine, **{"role": self.roles[machine], **changes})

    def model_calls(self) -> list[str]:
        """The machines that have begun a model call, in order."""
        calls = self.folder / "model-calls"
        return calls.read_text().split() if calls.exists() else []

    def with_lease(self) -> list[int]:
        """The machines that work: one that is only starting loses nothing while it is frozen."""
        pids = {(self.folder / f"home{machine}.pid").read_text(): machine for machine in self.living()}
        query = "SELECT holder FROM squidbot.all_leases WHERE name LIKE 'process:%'"
        with psycopg.connect(self.url) as db:
            holders = [holder.split("/")[1] for (holder,) in db.execute(query).fetchall()]
        return sorted(pids[pid] for pid in holders if pid in pids)

    def up(self, worker: int, **changes: object) -> None:
        """Start the daemon with accounts, then a worker that it knows of."""
        self.begin(0)
        self.until(lambda: self.owners() == dict.fromkeys([*ACCOUNTS, ""], "home0"))
        self.begin(worker, trace=True, **changes)
        self.until(lambda: "accounts.workers" in self.log())


@pytest.fixture
def cluster(nurseries: list[Nursery], postgres: PostgresServer, tmp_path: Path) -> Iterator[Workers]:
    """Its machines are off; what is left at the end is killed."""
    made = Workers(tmp_path, nurseries, postgres)
    try:
        yield made
    finally:
        made.close()


def test_a_worker_answers_and_gives_back_what_needs_the_home(cluster: Workers) -> None:
    """A turn with a tool that no worker runs is answered once, after one model call for each step, by two processes."""
    cluster.up(1)
    plain = cluster.say("loopback", "ann")
    cluster.until(lambda: plain in cluster.answered())
    with_tool = cluster.say("loopback1", "bob", "effect")
    cluster.until(lambda: with_tool in cluster.answered())
    cluster.quiet()
    cluster.end()
    assert cluster.model_calls() == ["home1", "home1", "home0"]
    assert cluster.log().count("turn.given_to_account") == 1
    assert cluster.problems() == []


def test_stop_ends_the_model_call_of_a_worker(cluster: Workers) -> None:
    """The person is told at once, the model is not waited for, and what comes next is answered."""
    cluster.up(1, pause_s=LONG_S)
    cluster.servers["loopback"].say("ann", "#1", conversation="dm-ann", native_id="$asked")
    cluster.until(lambda: cluster.model_calls() == ["home1"])
    cluster.servers["loopback"].say("ann", "!stop", conversation="dm-ann", native_id="$stop")
    cluster.until(lambda: "turn.cut_off" in cluster.log(), 5)
    cluster.until(lambda: any("re:" not in text for _, text in cluster.seen()), 10)
    cluster.end()
    assert "model.answered" not in (cluster.folder / "trace").read_text()
    assert cluster.answered() == set()


@pytest.mark.parametrize("control", ["", "holds_nothing"])
def test_an_account_changes_hands_while_a_worker_thinks(cluster: Workers, control: str) -> None:
    """
    Whoever takes the account leaves the worker's turn alone: one model call, one answer. In the control, whose claims name
    no holder, the turn is begun once more.
    """
    cluster.up(1, pause_s=LONG_S, control=control)
    number = cluster.say("loopback", "ann")
    cluster.until(lambda: cluster.model_calls() == ["home1"])
    cluster.kill(0)
    cluster.begin(3)
    cluster.until(lambda: cluster.owners() == dict.fromkeys([*ACCOUNTS, ""], "home3"))
    cluster.until(lambda: number in cluster.answered())
    cluster.quiet()
    cluster.end()
    assert cluster.model_calls() == (["home1", "home3"] if control else ["home1"])
    assert cluster.problems() == []


@pytest.mark.parametrize("control", ["", "holds_nothing"])
def test_a_worker_dies_while_it_thinks(cluster: Workers, control: str) -> None:
    """Its turn goes on elsewhere as soon as its lease has ended. In the control, whose claims name no holder, it is lost."""
    cluster.up(1, pause_s=LONG_S, control=control)
    number = cluster.say("loopback", "ann")
    cluster.until(lambda: cluster.model_calls() == ["home1"])
    cluster.kill(1)
    if control:
        time.sleep(LEASE_S + 5)
        assert number not in cluster.answered()
        return
    took = cluster.until(lambda: number in cluster.answered())
    print(f"gone on after {took:.1f} s, lease {LEASE_S:g} s")
    cluster.quiet()
    cluster.end()
    assert took < LEASE_S + 5
    assert cluster.problems() == []


def test_a_frozen_worker_wakes_after_its_turn_was_put_right(cluster: Workers) -> None:
    """It ends, and says nothing: what it has in hand was answered by somebody else."""
    cluster.up(1, pause_s=LONG_S)
    number = cluster.say("loopback", "ann")
    cluster.until(lambda: cluster.model_calls() == ["home1"])
    cluster.freeze(1)
    cluster.until(lambda: number in cluster.answered())
    cluster.thaw()
    cluster.until(lambda: 1 not in cluster.living())
    assert set(cluster.ended) == {TEMPORARY}
    cluster.quiet()
    cluster.end()
    assert cluster.problems() == []


@pytest.mark.parametrize(("seed", "role"), [(0, "accounts"), (1, "all")])
def test_any_of_them_may_die_at_any_moment(cluster: Workers, seed: int, role: str) -> None:
    """Kills, freezes beyond the lease, ends in order, while people talk by three accounts."""
    chance = chance_of(f"workers {seed} {os.environ.get('SQUIDBOT_WORKER_SEED', '')}")
    cluster.roles = (role, "worker", "worker", "all")
    for machine in range(3):
        cluster.begin(machine)
    while cluster.kills < KILLS or cluster.freezes < 2:
        cluster.chatter(chance)
        time.sleep(chance.uniform(0.1, 1.5))
        _strike(cluster, chance)
        for machine in range(3):
            if machine not in cluster.living() and (chance.random() < 0.6 or not cluster.living()):
                cluster.begin(machine)
    cluster.thaw()
    cluster.quiet(0, 1, 2)
    cluster.end()
    print(json.dumps({"kills": cluster.kills, "freezes": cluster.freezes, "said": len(cluster._sayings)}))
    assert cluster.problems() == []


def _strike(cluster: Workers, chance: random.Random) -> None:
    """One or two of them die, or one is frozen for longer than its lease, or ends in order."""
    up = [machine for machine in cluster.living() if machine not in cluster.frozen]
    what = chance.random()
    if what < 0.62 and up:
        for machine in chance.sample(up, k=min(len(up), chance.choice([1, 1, 1, 2]))):
            cluster.kill(machine)
    elif what < 0.70 and not cluster.frozen and (held := cluster.with_lease()):
        frozen = chance.choice(held)
        cluster.freeze(frozen)
        cluster.chatter(chance)
        time.sleep(LEASE_S * 1.3)
        cluster.thaw()
        cluster.until(lambda: frozen not in cluster.living())
    elif what < 0.76 and up:
        cluster.signal(chance.choice(up), signal.SIGTERM)
