"""
Three real daemons that are restarted in order, one after the other, while people talk: encrypted Matrix and mail.

The oracle is what people have received, and how long they have waited for it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Self

import pytest

from tests.kill.cluster_world import ACCOUNTS, MACHINES, Cluster
from tests.kill.takeover_daemon import LEASE_VARIABLE

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
NOBODY_WAITS_LONGER_S = 15.0
"""On a machine with other things to do; the lease of 30 seconds is not waited for."""


class Talk:
    """People who say something again as soon as they have their answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._talk, args=(name,), daemon=True) for name in ACCOUNTS]
        self._saying = threading.Lock()
        self.waits: list[tuple[float, str, float]] = []
        """When something was said, by which account, and how long it took to the answer."""

    def _talk(self, account: str) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            with self._saying:
                number = self._cluster.say(account)
            while number not in self._cluster.answered(account) and not self._end.is_set():
                time.sleep(0.1)
            if not self._end.is_set():
                self.waits.append((began, account, time.monotonic() - began))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(30)


def settled(cluster: Cluster) -> bool:
    """Whether one machine is active and the others stand by."""
    return cluster.active() is not None and all(d.asked("/readyz")[1].get("ready") for d in cluster.daemons)


def test_nobody_notices_much_of_a_restart_in_order(cluster: Cluster) -> None:
    """Another machine is active at once; all end with 0 and nothing is lost or doubled."""
    for daemon in cluster.daemons:
        daemon.environment = {LEASE_VARIABLE: "30"}
    cluster.up()
    cluster.until(lambda: settled(cluster))
    ends: list[float] = []
    with Talk(cluster) as talk:
        time.sleep(3)
        for number in MACHINES:
            daemon = cluster.daemons[number]
            ends.append(time.monotonic())
            daemon.terminate()
            assert daemon.ended() == 0, cluster.logs()
            took = time.monotonic() - ends[-1]
            print(f"machine {number} ended in {took:.1f} s", flush=True)
            time.sleep(3)
            cluster.until(lambda: cluster.restarted() and settled(cluster))
            time.sleep(3)
    cluster.quiet()
    usual = sorted(took for _, _, took in talk.waits)
    over = {
        account: [
            round(
                max(
                    (took for at, name, took in talk.waits if name == account and at - 30 < end < at + took),
                    default=0,
                ),
                1,
            )
            for end in ends
        ]
        for account in ACCOUNTS
    }
    told = {
        "said": len(cluster.said),
        "median_s": round(usual[len(usual) // 2], 2),
        "longest_s": [round(took, 1) for took in usual[-6:]],
        "over_an_end": over,
    }
    print(json.dumps(told))
    if report := os.environ.get("SQUIDBOT_CLUSTER_REPORT"):
        with Path(report).open("a") as file:
            file.write(json.dumps(told) + "\n")
    assert len(usual) > len(ACCOUNTS) * len(MACHINES)
    assert usual[-1] < NOBODY_WAITS_LONGER_S, (told, cluster.logs())
    cluster.end()
    assert cluster.problems() == [], cluster.logs()
