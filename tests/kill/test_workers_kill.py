"""
Two workers and a daemon with accounts: any of them killed or frozen for longer than its lease, at random moments. The oracle
is that of `test_cluster_kill`: what people have received, and what stands in the histories.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill.scenario import Nursery
from tests.kill.test_cluster_kill import ACCOUNTS, Cluster
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    """One for each machine."""
    with Nursery() as one, Nursery() as two, Nursery() as three, Nursery() as four:
        yield [one, two, three, four]


@pytest.fixture
def cluster(nurseries: list[Nursery], postgres: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    """Its machines are off; what is left at the end is killed."""
    made = Cluster(tmp_path, nurseries, postgres)
    try:
        yield made
    finally:
        made.close()


def test_smoke(cluster: Cluster) -> None:
    cluster.begin(0, role="accounts")
    cluster.until(lambda: cluster.owners() == dict.fromkeys([*ACCOUNTS, ""], "home0"))
    cluster.begin(1, role="worker", trace=True)
    cluster.until(lambda: "accounts.workers" in cluster.log())
    numbers = {cluster.say("loopback", "ann", words) for words in ("", "effect", "fact")}
    took = cluster.until(lambda: numbers <= cluster.answered())
    print("took", took)
    cluster.quiet()
    cluster.end()
    print(cluster.log())
    print((cluster.folder / "trace").read_text())
    assert cluster.problems() == []
