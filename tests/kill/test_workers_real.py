"""
Real daemons on one PostgreSQL, two of them workers, between a real Synapse with encrypted rooms and a real mail server: what
people get, and who has thought.
"""

from __future__ import annotations

import time

import pytest

from tests.kill.cluster_world import ACCOUNTS, Cluster
from tests.kill.tally import chance as chance_of

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """Machine 0 has the accounts, 1 and 2 are workers."""
    for number, role in enumerate(("accounts", "worker", "worker")):
        cluster.daemons[number].arguments = ["--role", role]
    return cluster


def answers(cluster: Cluster, number: int) -> int:
    """How many turns a machine has answered."""
    return cluster.daemons[number].log().count("turn.answered")


def test_workers_answer_on_accounts_that_they_do_not_have(cluster: Cluster) -> None:
    """
    In encrypted rooms and by mail; the daemon with the accounts thinks only while no worker lives. Whoever is killed, each
    message has one answer, and a worker never has an account.
    """
    chance = chance_of("real workers")
    cluster.up(0)
    alone = answers(cluster, 0)
    cluster.restarted()
    cluster.until(
        lambda: "living=2" in cluster.daemons[0].log() or "accounts.workers" in cluster.daemons[0].log()
    )
    for account in ACCOUNTS * 2:
        cluster.say(account)
    cluster.quiet()
    assert answers(cluster, 0) == alone == len(ACCOUNTS)
    assert answers(cluster, 1) + answers(cluster, 2) == 2 * len(ACCOUNTS)
    for victim in (1, 2, 0, 1):
        cluster.chatter(chance)
        time.sleep(chance.uniform(0, 0.5))
        cluster.kill(victim)
        cluster.chatter(chance)
        cluster.quiet()
    assert {cluster.owner(account) for account in ACCOUNTS} == {0}
    cluster.end()
    assert cluster.problems() == [], cluster.logs()
