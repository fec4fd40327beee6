"""Whose devices are asked for, and who waits for whom."""

from __future__ import annotations

import anyio
import pytest

from channels.base import ChannelUnavailable
from channels.matrix.crypto.devices import AT_ONCE, RETRY_S, DeviceLists, group_by_server
from tests.clock import ManualClock

ANN, BOB, CID = "@ann:fast.test", "@bob:slow.test", "@cid:slow.test"


class KeyServer:
    """Answers queries when it is told to; servers in ``dead`` are never named in answers."""

    def __init__(self):
        self.queries = []
        self.held: dict[str, anyio.Event] = {}
        self.failing: list[str] = []
        self.dead: set[str] = set()
        self.learned = []

    async def query(self, users):
        self.queries.append(list(users))
        server = users[0].partition(":")[2]
        if server in self.held:
            await self.held[server].wait()
        if server in self.failing:
            self.failing.remove(server)
            raise ChannelUnavailable("not now")
        return {"device_keys": {one: {} for one in users if server not in self.dead}}

    async def learn(self, user_id, _devices, _answer):
        self.learned.append(user_id)


@pytest.fixture
def server():
    return KeyServer()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def lists(server, clock):
    return DeviceLists(server, clock, server.learn)


def test_groups_by_server():
    """One for each server, none larger than a query may be, and not more than a few of them."""
    assert group_by_server([BOB, ANN, CID]) == [[ANN], [BOB, CID]]
    assert group_by_server([BOB, ANN, CID], own=BOB) == [[ANN], [BOB], [CID]]
    many = [f"@u{number}:big.test" for number in range(AT_ONCE + 1)]
    assert sorted(map(len, group_by_server(many))) == [1, AT_ONCE]
    wide = [f"@u:s{number:02}.test" for number in range(50)]
    assert len(group_by_server(wide)) == 8
    assert sorted(one for users in group_by_server(wide) for one in users) == sorted(wide)


async def test_who_is_known_is_not_asked_for(lists, server):
    """Once, until they change; whoever changes while the answer is on its way is asked for again."""
    await lists.wait_for_devices([ANN, BOB])
    await lists.wait_for_devices([ANN, BOB])
    assert server.queries == [[ANN], [BOB]]
    lists.note_changes([ANN])
    server.held["fast.test"] = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(lists.wait_for_devices, [ANN])
        await anyio.wait_all_tasks_blocked()
        lists.note_changes([ANN])
        server.held.pop("fast.test").set()
    await lists.wait_for_devices([ANN])
    assert server.queries[2:] == [[ANN], [ANN]]


async def test_a_slow_server_is_waited_for_by_those_who_need_it(lists, server):
    """People of another server are known at once; whoever wants to write to the slow ones waits for the one query."""
    server.held["slow.test"] = anyio.Event()
    done = []

    async def know(name, *users):
        await lists.wait_for_devices(users)
        done.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(know, "both", ANN, BOB)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(know, "slow", BOB)
        group.start_soon(know, "fast", ANN)
        await anyio.wait_all_tasks_blocked()
        assert done == ["fast"]
        server.held["slow.test"].set()
    assert sorted(done) == ["both", "fast", "slow"]
    assert server.queries == [[ANN], [BOB]]


async def test_a_failure_is_that_of_the_one_who_asked(lists, server):
    """Whoever has only waited asks again; the other server's people are known all the same."""
    server.held["slow.test"] = anyio.Event()
    server.failing = ["slow.test"]
    failed = []

    async def know(*users):
        try:
            await lists.wait_for_devices(users)
        except ChannelUnavailable:
            failed.append(users)

    async with anyio.create_task_group() as group:
        group.start_soon(know, ANN, BOB)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(know, BOB)
        await anyio.wait_all_tasks_blocked()
        server.held["slow.test"].set()
    assert failed == [(ANN, BOB)]
    assert server.queries == [[ANN], [BOB], [BOB]]
    assert sorted(server.learned) == [ANN, BOB]


@pytest.mark.parametrize("begun", [True, False])
async def test_who_is_given_up_is_asked_for_again(lists, server, begun):
    """Cancelled while it asks, or before it could: nobody waits for an answer that never comes."""
    server.held["slow.test"] = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(lists.wait_for_devices, [BOB])
        if begun:
            await anyio.wait_all_tasks_blocked()
        else:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    server.held.clear()
    with anyio.fail_after(60):
        await lists.wait_for_devices([BOB])
    assert server.learned == [BOB]


async def test_a_server_that_says_nothing_is_asked_again_later(lists, server, clock):
    """What is known has to do meanwhile; told that they have changed, their server is not asked at once either."""
    server.dead = {"slow.test"}
    await lists.wait_for_devices([BOB])
    lists.note_changes([BOB])
    await lists.wait_for_devices([BOB])
    assert server.queries == [[BOB]]
    clock.advance(RETRY_S + 1)
    await lists.wait_for_devices([BOB])
    lists.mark_outdated(BOB)
    await lists.wait_for_devices([BOB])
    assert server.queries == [[BOB]] * 3
