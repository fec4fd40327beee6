"""
Two whole gateways, each with a home of its own, on one database: one is frozen in the middle of a send, or killed, and the
other one goes on. The oracle is what people have received.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kill.gateway_child import Run
from tests.kill.scenario import Nursery, Scenario
from tests.kill.scripted import numbers_in
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill]
LEASE_S = 6.0
TEMPORARY = 75


@pytest.fixture(scope="module")
def nurseries() -> Iterator[tuple[Nursery, Nursery]]:
    """Each forks gateways, one after the other."""
    with Nursery() as one, Nursery() as two:
        yield one, two


class Machines(Scenario):
    """A world with two machines."""

    def __init__(self, folder: Path, nurseries: tuple[Nursery, Nursery], server: PostgresServer) -> None:
        url = server.with_tables()
        super().__init__(folder, nurseries[0], policy="probe", store=url, lease_s=LEASE_S)
        self._nurseries = nurseries
        self._threads = ThreadPoolExecutor(4)
        for nursery in nurseries:
            nursery.begin()

    def begin(self, machine: int, **changes: object) -> Future[int]:
        """A gateway on this machine; gives how it ended."""
        run: Run = replace(self.run, home=f"home{machine}", **changes)  # type: ignore[arg-type]
        return self._threads.submit(self._nurseries[machine].live, run)

    def kept_running(self, machine: int) -> int:
        """
        Start it again as a service manager does, until it ends in order.

        What a frozen process has locked, the server gives back after up to 15 s, which is longer than the lease here.
        """
        while (code := self.begin(machine).result(120)) == TEMPORARY:
            pass
        return code

    def process(self, machine: int) -> int:
        """Its number."""
        return int((self.folder / f"home{machine}.pid").read_text())

    def sending(self) -> None:
        """Wait until an answer is on its way."""
        until, trace = time.monotonic() + 60, self.folder / "trace"
        while not (trace.exists() and "uncertain" in trace.read_text()):
            assert time.monotonic() < until, self.log()[-3000:]
            time.sleep(0.02)

    def answers(self) -> Counter[int]:
        """How often each message was answered."""
        self.server.refresh()
        return Counter(number for each in self.server.seen() for number in numbers_in(each.text))


@pytest.mark.parametrize("control", ["", "goes_on"])
def test_a_frozen_gateway_sends_nothing_after_another_one_has_begun(
    control: str, nurseries: tuple[Nursery, Nursery], postgres: PostgresServer, tmp_path: Path
) -> None:
    """It wakes in the middle of three sends, and ends with 75 before any. The control has no end: people read it twice."""
    world = Machines(tmp_path, nurseries, postgres)
    for person in ("ann", "bob", "cid"):
        world.say(person)
    frozen = world.begin(0, trace=True, send_s=15.0, control=control, kill_after_s=250)
    world.sending()
    os.kill(world.process(0), signal.SIGSTOP)
    assert world.kept_running(1) == 0, world.log()[-3000:]
    assert world.answers() == {1: 1, 2: 1, 3: 1}
    os.kill(world.process(0), signal.SIGCONT)
    if control:
        frozen.result(60)
        assert world.answers() != {1: 1, 2: 1, 3: 1}
    else:
        assert frozen.result(60) == TEMPORARY
        assert "another squidbot may work on it now, so this one ends; start it again" in world.log()
        assert world.answers() == {1: 1, 2: 1, 3: 1}


def test_a_short_freeze_ends_nothing(
    nurseries: tuple[Nursery, Nursery], postgres: PostgresServer, tmp_path: Path
) -> None:
    world = Machines(tmp_path, nurseries, postgres)
    world.say("ann")
    frozen = world.begin(0, trace=True, send_s=1.0)
    world.sending()
    os.kill(world.process(0), signal.SIGSTOP)
    standby = world.begin(1)
    time.sleep(LEASE_S / 4)
    os.kill(world.process(0), signal.SIGCONT)
    assert (frozen.result(60), standby.result(60)) == (0, 0)
    assert world.answers() == {1: 1}
    before_the_end = world.log().partition("gateway.draining")[0]  # what ends in order is taken over at once
    assert before_the_end.count("lease.taken") == 1


def test_after_a_kill_the_other_machine_goes_on_and_the_same_one_at_once(
    nurseries: tuple[Nursery, Nursery], postgres: PostgresServer, tmp_path: Path
) -> None:
    """Whoever holds the lock of the home knows that the one before is dead; another machine waits for the lease."""
    world = Machines(tmp_path, nurseries, postgres)
    world.say("ann")
    assert world.begin(0, die="uncertain").result(60) == -signal.SIGKILL
    assert world.begin(0, die="uncertain").result(60) == -signal.SIGKILL  # at once
    assert world.begin(1).result(60) == 0
    assert world.answers() == {1: 1}
