"""
A database that says nothing any more while a key is being written: a real daemon between a real Synapse with encrypted
rooms, a real mail server and a PostgreSQL that is frozen, or whose link swallows everything.

The oracle is how long nothing of the daemon answers, and what people have received.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest

from tests.daemon import Daemon
from tests.kill.cluster_world import ACCOUNTS, TEMPORARY, Cluster
from tests.kill.takeover_daemon import LEASE_VARIABLE, WAITS
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]
SILENT_S = 9.0
BLOCKING_LIMIT_S = 4.0
"""A key is waited for by two seconds; the rest is this machine's."""


@pytest.fixture
def cluster_server() -> Iterator[PostgresServer]:
    """It is frozen here."""
    with PostgresServer.start(fsync=True) as server:
        yield server
        server.freeze(thaw=True)


class Pulse:
    """Asks a daemon all the time whether it lives."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._end = threading.Event()
        self.longest_s = 0.0
        self.refused: list[int] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            status, _ = self._daemon.asked("/livez")
            while status == 0 and not self._end.is_set():
                status, _ = self._daemon.asked("/livez")
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if status not in (0, 200):
                self.refused.append(status)
            self._end.wait(0.1)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)


def silence(cluster: Cluster, how: str) -> float:
    """
    The database says nothing while keys of rooms come and are wanted; for how long the daemon did not answer meanwhile.
    """
    with Pulse(cluster.daemons[0]) as pulse:
        for room in cluster.rooms.values():
            room.peer.new_key(room.room)
        cluster.links[0].fall_silent() if how == "silent" else cluster.server.freeze()
        until = time.monotonic() + SILENT_S
        for room in cluster.rooms:
            cluster.say(room)
        cluster.say("email")
        time.sleep(max(0.0, until - time.monotonic()))
    cluster.links[0].go_on()
    cluster.server.freeze(thaw=True)
    assert pulse.refused == []
    return pulse.longest_s


@pytest.mark.parametrize("how", ["silent", "frozen"])
def test_a_key_that_cannot_be_written_holds_nothing_else(cluster: Cluster, how: str) -> None:
    """The daemon answers all the time, and afterwards everybody, once, in rooms that can still be read."""
    cluster.daemons[0].environment = {LEASE_VARIABLE: "60"}
    cluster.up(0)
    longest_s = silence(cluster, how)
    cluster.quiet(0)
    for account in ACCOUNTS:
        cluster.say(account)
    cluster.quiet(0)
    print(f"{how}: {longest_s:.2f} s")
    assert longest_s < BLOCKING_LIMIT_S, cluster.logs()
    assert cluster.problems() == [], cluster.logs()


def test_the_control_waits_for_the_database(cluster: Cluster) -> None:
    """The control: a write that is waited for without a limit holds everything."""
    cluster.daemons[0].environment = {LEASE_VARIABLE: "60", WAITS: "1"}
    cluster.up(0)
    assert silence(cluster, "silent") > BLOCKING_LIMIT_S
    cluster.quiet(0)


def test_who_waits_for_a_key_longer_than_its_lease_ends_in_order(cluster: Cluster) -> None:
    """It notices in time that others may take over, instead of standing still beyond that."""
    cluster.up(0)
    for room in cluster.rooms.values():
        room.peer.new_key(room.room)
    cluster.links[0].fall_silent()
    for room in cluster.rooms:
        cluster.say(room)
    began = time.monotonic()
    code = cluster.daemons[0].ended(within_s=60)
    print(f"ended with {code} after {time.monotonic() - began:.1f} s")
    cluster.links[0].go_on()
    assert code == TEMPORARY
    assert "has not been reached" in cluster.daemons[0].log()
    cluster.quiet(0)
    assert cluster.problems() == [], cluster.logs()
