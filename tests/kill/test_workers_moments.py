"""
A worker dies at each moment that it passes, by its own hand, and so exactly there. The oracle is that of `test_cluster_kill`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.kill.scenario import Nursery
from tests.kill.test_cluster_kill import ACCOUNTS, PEOPLE, Cluster
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(900)]
WORDS = ("", "fact", "effect", "slow")
_OF_A_TURN = ("turns.", "model.", "usage.", "approvals.", "memory.", "maintenance.")
_NEEDED = {"turns.claim.after", "turns.complete.before", "turns.postpone.after", "model.answered"}
_EVERY = int(os.environ.get("SQUIDBOT_WORKER_MOMENTS", "6"))
"""One in so many of the moments; all of them take nine minutes."""


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    """One for each machine: the daemon with accounts, and two workers."""
    with Nursery() as one, Nursery() as two, Nursery() as three:
        yield [one, two, three]


@pytest.fixture
def cluster(nurseries: list[Nursery], postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    """A daemon with accounts, and a worker that it knows of; what is left at the end is killed."""
    made = Cluster(tmp_path, nurseries, postgres)
    try:
        made.begin(0, role="accounts")
        made.until(lambda: made.owners() == dict.fromkeys([*ACCOUNTS, ""], "home0"))
        yield made
    finally:
        made.close()


def _is_worker(cluster: Cluster, machine: int) -> bool:
    """Whether this machine has a worker, as the database says."""
    query = "SELECT holder FROM squidbot.all_leases WHERE name LIKE 'worker:%'"
    process = (cluster.folder / f"home{machine}.pid").read_text()
    with psycopg.connect(cluster.url) as db:
        return any(holder.split("/")[1] == process for (holder,) in db.execute(query).fetchall())


def _left(cluster: Cluster) -> int:
    """How many turns and calls are noted as in hand."""
    query = (
        "SELECT (SELECT count(*) FROM squidbot.all_leases WHERE name LIKE 'turn:%')"
        " + (SELECT count(*) FROM squidbot.all_state WHERE topic LIKE 'call:%')"
    )
    with psycopg.connect(cluster.url) as db:
        found = db.execute(query).fetchone()
        return -1 if found is None else int(found[0])


def _say_all(cluster: Cluster) -> None:
    for number, words in enumerate(WORDS):
        cluster.say(ACCOUNTS[number % len(ACCOUNTS)], PEOPLE[number % len(PEOPLE)], words)


def test_a_worker_dies_at_each_moment(cluster: Cluster) -> None:
    """All moments of its turns, of one that it gives back, too; the next one of its home goes on, or the daemon does."""
    cluster.begin(1, role="worker", trace=True)
    cluster.until(lambda: _is_worker(cluster, 1))
    moments: list[str] = []
    while not _NEEDED.issubset(moments):  # the daemon leaves to a worker what comes after it has seen that
        _say_all(cluster)
        cluster.quiet(0, 1)
        passed = (cluster.folder / "trace").read_text().split()
        moments = [one for one in passed if one.startswith(_OF_A_TURN)]
    struck: list[str] = []
    for number, moment in enumerate(moments[::_EVERY]):
        struck += [moment] * _died(cluster, moment)
        if number % 2:  # the daemon has to find out by itself that it is gone
            cluster.begin(2, role="worker")
            cluster.quiet(0, 2)
            cluster.signal(2, signal.SIGTERM)
            cluster.until(lambda: 2 not in cluster.living())
        else:
            cluster.quiet(0, 1)
        assert _problems(cluster) == [], moment
    cluster.quiet(0, 1)
    cluster.kills += len(struck)
    cluster.end()
    print("not struck:", *[one for one in moments[::_EVERY] if one not in struck])
    print(f"{len(struck)} kills at {len(set(struck))} of {len(moments)} moments")
    assert len(struck) >= len(moments[::_EVERY]) * 0.8
    assert _left(cluster) == 0
    assert _problems(cluster) == []


def _died(cluster: Cluster, moment: str) -> bool:
    """Whether the worker, started anew with some work, has died at this moment."""
    if 1 in cluster.living():
        cluster.signal(1, signal.SIGTERM)
        cluster.until(lambda: 1 not in cluster.living())
    cluster.begin(1, role="worker", die=moment)
    cluster.until(lambda: 1 not in cluster.living() or _is_worker(cluster, 1))
    time.sleep(1.0)  # so that the daemon knows of it, and leaves it what comes
    _say_all(cluster)
    said = {saying.number for saying in cluster._sayings}
    cluster.until(lambda: 1 not in cluster.living() or cluster.answered() >= said)
    return 1 not in cluster.living()


def _problems(cluster: Cluster) -> list[str]:
    """What the oracle says, and each fact stands in a memory document once."""
    newest = "SELECT DISTINCT ON (scope) line FROM squidbot.all_memory ORDER BY scope, version DESC"
    with psycopg.connect(cluster.url) as db:
        documents = [str(json.loads(line)["text"]) for (line,) in db.execute(newest).fetchall()]
    kept = [line for document in documents for line in document.splitlines()]
    facts = [f"- fact {one.number}" for one in cluster._sayings if "fact" in one.words]
    wrong = [f"{fact}: {kept.count(fact)} times" for fact in facts if kept.count(fact) != 1]
    return [*wrong, *(one for one in cluster.problems() if not one.startswith("the memory of"))]


def test_a_turn_kills_whoever_works_on_it(cluster: Cluster) -> None:
    """It is given up with one apology, after it has run alone, and others in hand are not blamed for what they were beside."""
    cluster.signal(0, signal.SIGTERM)
    cluster.until(lambda: 0 not in cluster.living())
    roles = ("accounts", "worker", "worker")

    def keep_running() -> None:
        for machine, role in enumerate(roles):
            if machine not in cluster.living():
                cluster.begin(machine, role=role, die="model.deadly", pause_s=0.3)

    def state() -> str:
        query = "SELECT state FROM squidbot.all_inbox WHERE native_id = '$deadly'"
        with psycopg.connect(cluster.url) as db:
            return str((db.execute(query).fetchone() or ("",))[0])

    def goes_on() -> bool:
        keep_running()
        if len(cluster._sayings) < 60:
            cluster.say("loopback1", "bob")
            cluster.say("loopback2", "ann", "slow")
        time.sleep(0.5)
        return state() == "dead"

    keep_running()
    cluster.until(lambda: _is_worker(cluster, 1) and _is_worker(cluster, 2))
    cluster.servers["loopback"].say("ann", "#0 deadly", conversation="dm-ann", native_id="$deadly")
    cluster.until(goes_on, 200)
    cluster.quiet(0)
    sorry = [text for place, text in cluster.seen() if place == "loopback/dm-ann"]
    assert len(sorry) == 1 and "I crashed" in sorry[0]
    with psycopg.connect(cluster.url) as db:
        beside = "SELECT count(DISTINCT number) FROM squidbot.all_deaths WHERE company > 0"
        [blamed] = db.execute(beside).fetchone() or (-1,)
    cluster.end()
    print(f"{cluster.ended.count(-signal.SIGKILL)} deaths, {blamed} of them in company")
    assert cluster.ended.count(-signal.SIGKILL) <= 8
    assert [one for one in cluster.problems() if "I crashed" not in one] == []
