"""A week under load in virtual time: nothing is lost or doubled, and nothing becomes more."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import anyio.to_thread
import pytest
import structlog

from tests.doubles.loopback import LoopbackServer
from tests.doubles.queue import wrapping
from tests.proactive_world import ANN, ANN_MAIL, house
from tests.soak.census import census, grown
from tests.soak.clock import SoakClock, SoakLoop

DAY_S = 86_400.0
DAYS = 7
WARM_DAYS = 3
"""Until every conversation was consolidated once, and all that is loaded when it is needed first is there."""
A_DAY = 100
"""Messages, on both channels together."""
OBJECTS = 300
"""So many objects more are caches that fill up; one for each message alone would be 400 in four days."""
CHECK_INS_OF_HALF_A_DAY = 26
NOTES = 5
"""Proactive messages that the owner may get, such as that a channel was away."""
USAGE_A_DAY = 12
"""Rows of what was spent: one for each day, purpose, session and model."""


@pytest.fixture(autouse=True)
def quiet_log():
    """A week has tens of thousands of lines."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


@pytest.fixture
def anyio_backend():
    return ("asyncio", {"loop_factory": SoakLoop})


class CountingServer(LoopbackServer):
    """A loopback server that counts what the bot says and keeps nothing of it, so that only the bot can grow."""

    def __init__(self, clock, *, replays=0):
        super().__init__(now=clock.now)
        self.replays = replays
        self.counted = Counter()
        self.alerts = 0

    async def fetch(self, link, after, *, limit, wait_s):
        return await super().fetch(link, after, limit=limit, wait_s=20 * wait_s)

    def tidy(self):
        """Count and forget."""
        for one in self.delivered:
            if one.kind in ("alert", "notice"):
                self.alerts += 1
            else:
                self.counted[
                    one.context.route.get("test") or one.text.partition("#")[2].partition(" ")[0]
                ] += 1
        self.said[:] = [None] * len(self.said)
        self.tries.clear()
        self.delivered.clear()
        self._first_by_key.clear()
        self.previews.clear()


class Week:
    """A gateway, its people, and the days that pass."""

    def __init__(self, home, clock, root):
        self.home, self.clock, self.root = home, clock, root
        self.chance = random.Random(7)
        self.numbers = {home.chat: 0, home.mail: 0}

    async def day(self):
        """Messages at any time of the day, single and in bursts, through broken links; then the evening."""
        end = self.clock.monotonic() + DAY_S
        for left in range(A_DAY, 0, -1):
            if self.chance.random() < 0.9:
                await anyio.sleep(
                    self.chance.uniform(0, 2) * max(0.0, end - 3600 - self.clock.monotonic()) / left
                )
            self.say()
        await self.quiet()
        await anyio.sleep(max(0.0, end - self.clock.monotonic()))
        await self.quiet()
        for server in (self.home.chat, self.home.mail):
            server.tidy()
        self.home.model.asked.clear()

    def say(self):
        """The next message of somebody; now and then the line breaks beside it, or the server repeats itself."""
        server, person = self.chance.choice(
            [(self.home.chat, ANN), (self.home.chat, "@bob:hs.test"), (self.home.mail, ANN_MAIL)]
        )
        self.numbers[server] += 1
        server.say(person, f"please repeat #{self.numbers[server]} " + "word " * self.chance.randint(1, 80))
        if self.chance.random() < 0.05:
            server.drop_link()
        if self.chance.random() < 0.05:
            server.lose_answers()

    async def quiet(self):
        """Until everything is answered, sent and filed."""
        with anyio.fail_after(7200):
            while True:
                stats = await self.home.built.store.maintenance.stats()
                waiting = [stats.inbox[state] for state in ("ready", "running", "answered")]
                waiting += [stats.outbox[state] for state in ("pending", "sending", "uncertain")]
                if (
                    not any(waiting)
                    and not stats.journal_lines
                    and self.home.chat.acknowledged == len(self.home.chat.said)
                    and self.home.mail.acknowledged == len(self.home.mail.said)
                ):
                    return
                await anyio.sleep(60)

    async def answered(self):
        """What is wrong with the answers."""
        wrong = []
        for server, said in self.numbers.items():
            server.tidy()
            expected = Counter({str(number): 1 for number in range(1, said + 1)})
            if server.counted != expected:
                wrong.append(f"lost {expected - server.counted}, too many {server.counted - expected}")
        return wrong


@asynccontextmanager
async def weeks(root, **overrides):
    clock = SoakClock()
    async with house(
        root,
        "HEARTBEAT_OK",
        heartbeat={"interval_minutes": 30.0},
        clock=clock,
        chat=CountingServer(clock),
        mail=CountingServer(clock),
        **overrides,
    ) as home:
        store, search = home.built.store, home.built.post_turn.search
        limiters = [
            home.built.memory._limiter,
            search._limiter,
            anyio.to_thread.current_default_thread_limiter(),
        ]

        def busy():
            queued = store.database.writer._queue.qsize() or store.database.reader._queue.qsize()
            return bool(store.maintenance.stalled_s or queued or any(one.borrowed_tokens for one in limiters))

        asyncio.get_running_loop().while_busy(busy)
        yield Week(home, clock, root)


async def test_a_week_under_load_leaves_it_as_it_was(tmp_path):
    """
    Some 700 messages and 336 check-ins, with broken links, lost receipts and consolidation: each answered once, and
    after the seventh day no object, task, thread, file or row is there that was not after the third, but for
    the rows that are kept on purpose; and those go when their time is over.
    """
    async with weeks(tmp_path) as week:
        for _ in range(WARM_DAYS):
            await week.day()
        ticks, first = week.home.model.ticks, census(tmp_path)
        for _ in range(DAYS - WARM_DAYS):
            await week.day()
        last = census(tmp_path)
        kept = {
            "inbox": (DAYS - WARM_DAYS) * A_DAY + week.home.model.ticks - ticks,
            "outbox": (DAYS - WARM_DAYS) * A_DAY + NOTES,
            "ledger": week.home.model.ticks - ticks,
            "usage": (DAYS - WARM_DAYS) * USAGE_A_DAY,
            "state": DAYS - WARM_DAYS + 1,  # the dearest turns of each day that began
        }
        assert await week.answered() == []
        assert week.home.model.ticks == DAYS * 48
        assert grown(first, last, objects=OBJECTS, rows=kept) == []

        week.clock.put_forward(timedelta(days=91))
        await anyio.sleep(DAY_S / 2)
        await week.quiet()
        week.home.model.asked.clear()
        months = census(tmp_path)
        assert last.payloads["inbox"] >= DAYS * A_DAY
        assert last.payloads["outbox"] >= DAYS * A_DAY
        assert max(months.payloads.values()) <= CHECK_INS_OF_HALF_A_DAY
        assert months.rows["ledger"] <= CHECK_INS_OF_HALF_A_DAY
        assert grown(first, months, objects=OBJECTS, rows=months.rows) == []


async def test_a_gateway_that_keeps_something_of_each_message_is_found(tmp_path):
    """The control: one object for each turn, held by somebody, and the same check says so."""
    kept = []

    class Keeping:
        def __init__(self, store):
            self._store = store

        def __getattr__(self, name):
            return getattr(self._store, name)

        async def claim(self, *arguments, **named):
            claimed = await self._store.claim(*arguments, **named)
            kept.append([claimed])
            return claimed

    async with weeks(tmp_path, wrap_queue=wrapping(turns=Keeping)) as week:
        await week.day()
        first = census(tmp_path)
        await week.day()
        last = census(tmp_path)
    assert kept
    [told] = [one for one in grown(first, last, objects=OBJECTS, rows=last.rows) if "objects" in one]
    assert "gateway.store.model.Turn" in told
