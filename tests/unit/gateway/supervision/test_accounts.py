"""Which accounts a process takes, and how it gives one back. On virtual time; the database's part is in the contract."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping

import anyio
import pytest

from agent_core.messages import SessionKey
from gateway.observability import metrics
from gateway.queue.shared import SHARED
from gateway.queue.sql import cluster, leases
from gateway.queue.sql.cluster import COMMAND, FREED, PROCESS, REST
from gateway.queue.sql.tables import TABLES
from gateway.queue.stores import StoreUnavailable
from gateway.queue.wakeups import Wakeups, Work
from gateway.supervision.accounts import Accounts, share_of
from gateway.supervision.other_processes import OtherProcesses

NAMES = {"email": "bot@mail.test", "matrix": "@bot:hs.test", "work": "@bot:work.test"}


@pytest.fixture
def anyio_backend(virtual_backend):
    return virtual_backend


class Server:
    """A database that can be away."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.executescript(TABLES)
        self.away = self.answer_is_lost = False
        self.looks = 0

    def __del__(self) -> None:
        self.db.close()

    def begin(self, holder: str, ttl_s: float = 1e6) -> None:
        leases.lease(self.db, PROCESS + holder, holder, ttl_s, now())

    def begin_looking(self, holder: str) -> None:
        """A process that takes nothing by itself."""
        self.begin(holder)
        cluster.take(self.db, [], NAMES, holder, now(), now())

    def end(self, holder: str) -> None:
        leases.release_lease(self.db, PROCESS + holder, holder)

    def owners(self):
        return cluster.cluster(self.db, now()).owners

    async def cluster(self):
        self.looks += 1
        if self.away:
            raise StoreUnavailable("away")
        return cluster.cluster(self.db, now())

    async def take_accounts(self, names, *, configured, holder):
        if self.away:
            raise StoreUnavailable("away")
        taken = cluster.take(self.db, names, configured, holder, now(), now())
        if self.answer_is_lost:
            self.answer_is_lost = False
            raise StoreUnavailable("the line broke after the commit")
        return taken

    async def give_account(self, name, *, holder):
        if self.away:
            raise StoreUnavailable("away")
        cluster.give(self.db, name, holder)


class Flow:
    """Sends of a channel."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.busy: set[str] = set()

    def hold(self, channel):
        self.held.add(channel)

    def go_on(self, channel):
        self.held.discard(channel)

    async def quiet(self, channel):
        while channel in self.busy:
            await anyio.sleep(0.1)


def now() -> float:
    return asyncio.get_running_loop().time()


class Line:
    """What processes tell each other."""

    def __init__(self, *, listening: bool = True) -> None:
        self.listening = listening
        self.told: list[str] = []

    def tell(self, name: str) -> None:
        self.told.append(name)


class Process:
    """A process: its accounts, and what it does with them."""

    def __init__(
        self,
        server: Server,
        name: str,
        owners: str = "matrix",
        ttl_s: float = 1e6,
        together: tuple[str, ...] = (),
        names: Mapping[str, str] = NAMES,
        line: Line | None = None,
    ) -> None:
        server.begin(name, ttl_s)
        self.holder, self.flow = name, Flow()
        self.accounts = Accounts(
            server,
            self,
            names,
            together=together,
            look_every_s=2.0,
            drain_s=20.0,
            owners=self._owners,
            others=OtherProcesses(line),
        )
        self.owners, self.new, self.asked, self.asked_for, self.asking_s = owners, [], 0, None, 0.0
        self.fails = self.others_fail = False
        self.is_up = True

    async def _owners(self):
        return self.owners

    async def taken(self, new):
        if self.fails:
            self.fails = False
            raise StoreUnavailable("not now")
        self.new.append(set(new))

    async def others(self, accounts):
        self.asked += 1
        self.asked_for = accounts
        await anyio.sleep(self.asking_s)
        if self.others_fail:
            self.others_fail = False
            raise StoreUnavailable("not now")

    async def run(self):
        await self.accounts.run(
            [self.flow],
            [*NAMES, "terminal"],
            is_up=lambda _: self.is_up,
            taken=self.taken,
            others=self.others,
        )

    @property
    def has(self):
        return [name for name in (*NAMES, "terminal") if self.accounts.has(name)]


@pytest.fixture
async def server():
    return Server()


def test_a_share_is_rounded_up():
    assert [share_of(3, processes) for processes in (0, 1, 2, 3, 4)] == [3, 3, 2, 1, 1]
    assert share_of(0, 2) == 0


async def test_the_second_gets_its_share_and_the_first_keeps_the_owners_account(server):
    one, two = Process(server, "one"), None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        assert one.has == [*NAMES, "terminal"] and one.new == [{*NAMES, REST}] and one.asked == 0
        two = Process(server, "two")
        tasks.start_soon(two.run)
        await anyio.sleep(10)
        assert (one.has, two.has) == (["matrix", "work", "terminal"], ["email"])
        third = Process(server, "three")
        tasks.start_soon(third.run)
        await anyio.sleep(10)
        assert (one.has, two.has, third.has) == (["matrix", "terminal"], ["email"], ["work"])
        fourth = Process(server, "four")
        tasks.start_soon(fourth.run)
        await anyio.sleep(10)
        assert fourth.has == []  # it stands by
        server.end("two")
        await anyio.sleep(3)
        assert sum("email" in each.has for each in (one, third, fourth)) == 1
        assert one.asked and fourth.asked
        tasks.cancel_scope.cancel()


async def test_one_that_is_alone_looks_for_what_a_command_has_written(server):
    """For a minute behind it. The command has no share, and the control is the time before it."""
    one = Process(server, "one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(100)
        assert one.asked == 0
        leases.lease(server.db, f"{COMMAND}c", "c", 6.0, now())
        await anyio.sleep(5)
        assert one.asked and one.has == [*NAMES, "terminal"]
        await anyio.sleep(100)
        asked = one.asked
        await anyio.sleep(100)
        assert one.asked == asked
        tasks.cancel_scope.cancel()


async def test_who_hears_the_others_asks_at_once_and_else_rarely(server):
    """The controls: one that hears nothing asks with each look, and what is told of accounts of others calls nobody."""
    line = Line()
    one, two = Process(server, "one", line=line), Process(server, "two")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        tasks.start_soon(two.run)
        await anyio.sleep(60.5)
        asked, without = one.asked, two.asked
        await anyio.sleep(200)
        assert (one.asked - asked, two.asked - without) == (10, 100)
        mine, others = one.has[0], two.has[0]
        for name, more, accounts in (
            (mine, 1, {mine}),
            (others, 0, None),
            ("*", 1, None),
            (None, 1, None),
            ("none of ours", 1, None),  # with `REST`
        ):
            asked = one.asked
            one.accounts.hear(name)
            await anyio.sleep(0.2)
            assert one.asked - asked == more, name
            assert not more or one.asked_for == accounts, name
        line.listening, asked = False, one.asked
        await anyio.sleep(20)
        assert one.asked - asked == 10
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("asking_s", "per_s"), [(0.0, 50), (0.004, 25), (0.02, 10)])
async def test_asking_takes_a_tenth_of_the_time_at_most(server, asking_s, per_s):
    """However often it is called: at least every tenth of a second, and not more than 50 times in one."""
    one = Process(server, "one", line=Line())
    one.asking_s = asking_s
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        asked = one.asked
        for _ in range(250):
            one.accounts.hear("matrix")
            await anyio.sleep(0.004)
        assert abs(one.asked - asked - per_s) <= 0.2 * per_s
        tasks.cancel_scope.cancel()


async def test_calls_for_one_account_put_off_no_look_for_all(server):
    """One that fails is made good by a look for all of them, and then one look in ten is for all, as ever."""
    one, two = Process(server, "one", line=Line()), Process(server, "two")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        tasks.start_soon(two.run)
        await anyio.sleep(120)
        [mine] = one.has[:1]
        one.others_fail, found = True, []
        for _ in range(250):
            one.accounts.hear(mine)
            await anyio.sleep(0.1)
            found.append(one.asked_for)
        assert found[0] == {mine}
        assert found.count(None) == 2 and None in found[:21]
        tasks.cancel_scope.cancel()


async def test_what_another_one_leaves_is_taken_at_once_by_who_hears_of_it(server):
    """Its end, and an account that it gives back. The control is one that is told nothing, and looks later."""
    line = Line()
    one = Process(server, "one", line=line)
    server.begin_looking("two")
    cluster.take(server.db, ["work", "email"], NAMES, "two", now(), now())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(10.5)
        assert one.has == ["matrix", "terminal"]
        cluster.give(server.db, "work", "two")
        one.accounts.hear(FREED)
        await anyio.sleep(0.2)
        assert "work" in one.has
        server.end("two")
        await anyio.sleep(0.2)
        assert "email" not in one.has
        one.accounts.hear(FREED)
        await anyio.sleep(0.2)
        assert "email" in one.has
        server.begin_looking("three")
        await anyio.sleep(30)
        assert line.told == [FREED]  # what it has given back itself
        tasks.cancel_scope.cancel()


async def test_a_call_that_could_not_be_followed_is_made_good_with_the_next_look(server):
    """So is what came while an account was to be given back and stayed."""
    one = Process(server, "one", line=Line())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        server.begin("two")
        await anyio.sleep(1)
        one.flow.busy.update(NAMES)  # nothing is given
        await anyio.sleep(120)
        asked, one.others_fail = one.asked, True
        one.accounts.hear(None)
        await anyio.sleep(0.5)
        assert one.asked - asked == 1
        await anyio.sleep(2)
        assert one.asked - asked == 2
        await anyio.sleep(2)
        assert one.asked - asked == 2
        tasks.cancel_scope.cancel()


async def test_what_nobody_has_is_counted(server):
    """By each process, also one that may not take it now."""
    one = Process(server, "one")
    server.begin_looking("two")  # it has not taken its share
    await one.accounts.look()
    assert metrics.ACCOUNTS_UNOWNED._value.get() == 1
    cluster.take(server.db, ["email", "matrix", "work"], NAMES, "two", now(), now())
    await one.accounts.look()
    assert metrics.ACCOUNTS_UNOWNED._value.get() == 0


async def test_others_are_told_what_is_theirs(server):
    """Nobody is told while nobody else is there, nor of what this process has itself."""
    line, wakeups = Line(), Wakeups()
    one = Process(server, "one", line=line)
    one.accounts.tell_of(wakeups)

    def all_of(channel: str) -> list[str]:
        line.told.clear()
        wakeups.session.fire(Work(SessionKey(channel, "room"), 0.0, channel, "ann", True, "message"))
        wakeups.outbox.fire(channel)
        return line.told

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        assert not [each for name in NAMES for each in all_of(name)]
        line_of_two, of_two = Line(), Wakeups()
        two = Process(server, "two", line=line_of_two)
        two.accounts.tell_of(of_two)
        tasks.start_soon(two.run)
        await anyio.sleep(20)
        [given] = two.has
        for name in NAMES:
            assert all_of(name) == ([given] * 2 if name == given else []), name
        assert all_of("terminal") == ["*"]  # its session is ours, and what it is spoken by may not be
        line.told.clear()
        wakeups.drafts.fire(given)
        wakeups.alert_kept.fire("channel given")
        assert not line.told  # the owner is asked and told here
        of_two.alert_kept.fire("channel given")
        assert line_of_two.told == [REST]
        for told in (wakeups.jobs, wakeups.owner):
            told.fire("one of them")
        assert line.told == ["*", "*"]
        for look in (wakeups.drafts, wakeups.jobs):
            look.fire("")  # as a look does; it must call nobody, who would call us
        assert line.told == ["*", "*"]
        tasks.cancel_scope.cancel()


async def test_what_is_in_hand_comes_to_its_end_before_another_one_may_have_it(server):
    """A turn and a send; nothing new is begun meanwhile. The control, without them, is quick."""
    one = Process(server, "one")
    ended = anyio.Event()

    async def turn(_):
        await anyio.sleep(6)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        server.begin_looking("two")
        await anyio.sleep(4)
        run, session = one.accounts.over(turn), SessionKey("email", "thread")
        for each in (
            session,
            SessionKey("work", "room"),
        ):  # of two it would give the one in which nothing runs
            tasks.start_soon(run, each)
        one.flow.busy.add("email")
        await anyio.sleep(3)
        assert one.flow.held == {"email"} and not one.accounts.has("email") and one.accounts.runs("email")
        assert await one.accounts.over(turn)(session) is None  # it does not begin, and does not wait
        assert server.owners()["email"] == "one"
        await ended.wait()
        await anyio.sleep(1)
        assert server.owners()["email"] == "one"
        one.flow.busy.clear()
        await anyio.sleep(1)
        assert "email" not in server.owners() and not one.flow.held
        server.begin_looking("three")
        await anyio.sleep(8)
        assert "work" not in server.owners()
        tasks.cancel_scope.cancel()


async def test_what_takes_too_long_is_not_cut_off(server):
    """All goes on as before, and it is tried again later."""
    one = Process(server, "one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        one.flow.busy |= {"email", "work"}
        server.begin_looking("two")
        await anyio.sleep(30)
        assert one.accounts.has("email") and "email" not in one.flow.held
        one.flow.busy.clear()
        two = Process(server, "two")
        tasks.start_soon(two.run)
        await anyio.sleep(90)
        assert len(set(NAMES) & set(one.has)) == 2 and len(two.has) == 1
        tasks.cancel_scope.cancel()


async def test_what_runs_while_it_is_held_has_ended_before_it_is_given_back(server):
    one, seen = Process(server, "one"), []

    async def channel():
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)
            seen.append(server.owners()["email"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        tasks.start_soon(one.accounts.while_held, "email", channel)
        await anyio.sleep(3)
        server.begin_looking("two")
        await anyio.sleep(15)
        assert seen == ["one"] and "email" not in server.owners()
        one.accounts.stop()
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()


async def test_what_happens_once_goes_where_the_owner_is_written_to(server):
    one, two = Process(server, "one"), Process(server, "two")
    async with anyio.create_task_group() as tasks:
        for each in (one, two):
            tasks.start_soon(each.run)
        await anyio.sleep(14)
        [here] = [each for each in (one, two) if "terminal" in each.has]
        [other] = {one, two} - {here}
        assert "matrix" in here.has
        [elsewhere] = [name for name in NAMES if name in other.has][:1]
        one.owners = two.owners = elsewhere
        await anyio.sleep(14)
        assert "terminal" in other.has and "terminal" not in here.has
        tasks.cancel_scope.cancel()


async def test_the_accounts_of_one_conversation_and_what_happens_once_have_one_process(server):
    """At every moment, also while they are given back, or their process ends; with a session of it in hand none goes."""
    shared = ("email", "matrix")
    one, two, three = (Process(server, name, "work", together=shared) for name in ("one", "two", "three"))
    server.end("two"), server.end("three")
    holders: list[set[str]] = []
    in_hand = anyio.Event()

    async def watch():
        while True:
            holders.append({who for name, who in server.owners().items() if name != "work"})
            await anyio.sleep(0.1)

    async def answer(_):
        await in_hand.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        tasks.start_soon(one.run)
        await anyio.sleep(5)
        assert one.has == [*NAMES, "terminal"]
        tasks.start_soon(one.accounts.over(answer), SHARED)
        server.begin("two")
        tasks.start_soon(two.run)
        await anyio.sleep(10)
        assert (one.has, two.has) == (["work"], [])  # nothing is begun, and it is not the other one's yet
        in_hand.set()
        await anyio.sleep(10)
        assert (one.has, two.has) == (["work"], ["email", "matrix", "terminal"])
        server.begin("three")
        tasks.start_soon(three.run)
        await anyio.sleep(10)
        assert three.has == []
        server.end("two")
        await anyio.sleep(10)
        assert (one.has, three.has) == (["work"], ["email", "matrix", "terminal"])
        tasks.cancel_scope.cancel()
    assert max(map(len, holders)) == 1


@pytest.mark.parametrize("together", [(), ("email", "matrix")])
async def test_nobody_takes_a_part_of_what_belongs_together(server, together):
    """While another one has what happens once; accounts that are none of each other's are taken, and that is the control."""
    server.begin("old")
    cluster.take(server.db, [REST], NAMES, "old", now(), now())
    one = Process(server, "one", together=together)
    await one.accounts.look()
    assert one.has == (["work"] if together else ["email", "matrix"])
    server.end("old")
    await one.accounts.look()
    assert one.has == [*NAMES, "terminal"]


async def test_a_database_that_is_away_changes_nothing_and_nothing_is_forgotten(server):
    """Also when it had taken the call, and when what waits there could not be looked at yet."""
    one = Process(server, "one")
    async with anyio.create_task_group() as tasks:
        server.answer_is_lost = one.fails = True
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        assert one.has == [] and set(server.owners()) == {*NAMES, REST}
        await anyio.sleep(4)
        assert one.has == [*NAMES, "terminal"] and one.new == [{*NAMES, REST}]
        server.away = True
        await anyio.sleep(10)
        assert one.has == [*NAMES, "terminal"]
        tasks.cancel_scope.cancel()


async def test_whose_own_lease_has_ended_takes_nothing(server):
    one = Process(server, "one", ttl_s=1.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(10)
        assert one.has == [] and server.owners() == {}
        server.begin("one")
        await anyio.sleep(3)
        assert one.has == [*NAMES, "terminal"]  # the control
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("names", [{"matrix": NAMES["matrix"]}, {"elsewhere": "@bot:else.test"}])
async def test_what_another_one_does_not_take_is_taken_back_and_kept_longer_each_time(server, names):
    """The other one has other settings: no account is with nobody for long, and it moves ever less often."""
    one = Process(server, "one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        other = Process(server, "other", names=names)
        tasks.start_soon(other.run)
        missed = [0, 0]
        for look in range(300):
            await anyio.sleep(2)
            missing = [name for name in NAMES if name not in server.owners()]
            missed[look // 150] += bool(missing)
            assert len(missing) <= 1 and max(missed) <= 24
        assert missed[1] < missed[0]
        assert set(server.owners()) >= NAMES.keys()
        tasks.cancel_scope.cancel()


async def test_a_process_that_is_still_starting_keeps_nobody_from_what_a_dead_one_has_left(server):
    """It holds its lease, and has no share before it looks for the first time. Nothing is given back to it, either."""
    one, two = Process(server, "one"), Process(server, "two")
    life = anyio.CancelScope()

    async def until_it_dies():
        with life:
            await two.run()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        tasks.start_soon(until_it_dies)
        await anyio.sleep(20)
        assert len(set(NAMES) & set(one.has)) + len(set(NAMES) & set(two.has)) == len(NAMES)
        life.cancel()
        server.begin("starting")
        server.end("two")
        await anyio.sleep(3)
        assert one.has == [*NAMES, "terminal"]
        await anyio.sleep(60)
        assert one.has == [*NAMES, "terminal"]
        server.begin_looking("starting")
        await anyio.sleep(10)
        assert len(one.has) < len([*NAMES, "terminal"])  # the control
        tasks.cancel_scope.cancel()


async def test_what_two_have_left_that_died_one_after_the_other_waits_for_neither(server):
    """The second one counts until its lease has ended: its share is not left to it for longer than for a look."""
    one = Process(server, "one")
    server.begin_looking("two")
    server.begin_looking("three")
    for name, holder in (("email", "two"), ("work", "two"), ("matrix", "three")):
        cluster.take(server.db, [name], NAMES, holder, now(), now())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        server.end("two")  # and "three" has died, too
        await anyio.sleep(5)
        assert {"email", "work"} <= set(one.has)
        tasks.cancel_scope.cancel()


async def test_one_of_an_earlier_version_keeps_what_it_has_and_leaves_nothing(server):
    """It does not say that it takes accounts, and ends a later one without knowing what that has said."""
    server.begin("earlier")
    cluster.take(server.db, ["email"], NAMES, "earlier", now(), now())
    server.begin_looking("dead")
    server.db.execute("DELETE FROM leases WHERE name IN ('taker:earlier', 'process:dead')")
    one = Process(server, "one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(30)
        assert one.has == ["matrix", "work", "terminal"] and server.owners()["email"] == "earlier"
        server.end("earlier")
        await anyio.sleep(6)
        assert one.has == [*NAMES, "terminal"]
        takers = "SELECT name FROM leases WHERE name LIKE 'taker:%'"
        assert server.db.execute(takers).fetchall() == [("taker:one",)]
        tasks.cancel_scope.cancel()


async def test_a_channel_that_is_only_beginning_is_not_given_back(server):
    """Somebody waits for its first answer. One that never comes up is given to who may have more luck."""
    one = Process(server, "one")
    one.is_up = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        server.begin_looking("two")
        await anyio.sleep(40)
        assert one.has == [*NAMES, "terminal"]
        await anyio.sleep(30)
        assert len(set(NAMES) & set(server.owners())) < len(NAMES)
        tasks.cancel_scope.cancel()


async def test_nothing_is_given_to_who_only_begins_again_and_again(server):
    """A process that fails at each start is seen for a moment, and disturbs nobody."""
    one = Process(server, "one")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run)
        await anyio.sleep(3)
        for number in range(50):
            server.begin(f"failing {number}")
            await anyio.sleep(1)
            server.end(f"failing {number}")
            await anyio.sleep(3)
            assert set(server.owners().values()) == {"one"}
            assert len(server.owners()) == len(NAMES) + 1
        assert one.new == [{*NAMES, REST}]
        tasks.cancel_scope.cancel()
