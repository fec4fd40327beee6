"""What happens to a message on its way out when the channel or the store misbehaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import OutboundKind, OutboundMessage, SessionKey
from channels.base import (
    Capabilities,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
    Inbox,
    NoRecipient,
    Receipt,
    Redelivery,
)
from gateway.routing.delivery import Delivery
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import OutboxState
from gateway.store.stores import NewOutbound, OutboxRow, OutboxStore, StoreUnavailable
from gateway.store.wakeups import Wakeups
from gateway.system.clock import SystemClock
from tests.clock import ManualClock
from tests.doubles.queue import wrapping

ANN, BOB = SessionKey("there", "ann"), SessionKey("there", "bob")


class There:
    """A channel whose answers are scripted: an exception is raised, anything else is a success."""

    name, account = "there", "bot"

    def __init__(self, redelivery: Redelivery = Redelivery.SAME_KEY) -> None:
        self.capabilities = Capabilities(redelivery=redelivery)
        self.script: list[Exception | None] = []
        self.probes: list[Exception | Receipt | None] = []
        self.tries: list[str] = []
        self.open_before: list[bool] = []
        self.hold: anyio.Event | None = None

    async def run(self, inbox: Inbox) -> None:
        raise NotImplementedError

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        self.tries.append(message.text)
        self.open_before.append(message.maybe_sent)
        await uncertain()
        failure = self.script.pop(0) if self.script else None
        if failure is not None:
            raise failure
        if self.hold is not None:
            await self.hold.wait()
        return Receipt(f"taken-{len(self.tries)}")

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        outcome = self.probes.pop(0) if self.probes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def typing(self, session: SessionKey, *, on: bool) -> None: ...

    async def preview(self, session: SessionKey, text: str) -> None: ...

    async def aclose(self) -> None: ...


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as opened:
        yield opened


@asynccontextmanager
async def running(channel: Any, store: Any, **more: Any) -> AsyncIterator[Delivery]:
    """A delivery whose link is up, until the block ends."""
    delivery = Delivery(channel, store, more.pop("clock", SystemClock()), **more)
    delivery.link(up=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delivery.run)
        yield delivery
        tasks.cancel_scope.cancel()


async def settled(store: SqliteQueue, *texts: str, state: OutboxState = OutboxState.SENT) -> list[OutboxRow]:
    """Wait until exactly these messages are in a state."""
    with anyio.fail_after(60):
        while True:
            rows = await store.outbox.rows(states=[state])
            if sorted(row.message.text for row in rows) == sorted(texts):
                return rows
            await anyio.sleep(0.01)


async def post(store: SqliteQueue, session: SessionKey, *texts: str) -> list[OutboxRow]:
    return await store.outbox.post([NewOutbound("there", "bot", session, text) for text in texts])


class VerifiedBackup:
    """A store that counts how often it is asked what there is to send."""

    def __init__(self, outbox: OutboxStore) -> None:
        self._outbox = outbox
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    async def next_sends(self, *args: Any, **named: Any) -> list[OutboxRow]:
        self.looks += 1
        return await self._outbox.next_sends(*args, **named)


async def test_a_commit_alone_gets_it_sent_and_nothing_polls(tmp_path: Path) -> None:
    """Nobody calls `Delivery.wake`: what is committed is sent at once, and nobody looks in between."""
    wakeups, channel = Wakeups(), There()
    path = tmp_path / "gateway.db"
    async with await SqliteQueue.open(path, clock=SystemClock(), wakeups=wakeups) as store:
        looked = VerifiedBackup(store.outbox)
        async with running(channel, wrapping(outbox=lambda _: looked)(store), wakeups=wakeups):
            await anyio.sleep(0.5)
            assert looked.looks == 1
            await post(store, ANN, "one")
            await settled(store, "one")
            await anyio.sleep(0.5)
            assert looked.looks <= 4
            before = looked.looks
            await store.outbox.post([NewOutbound("elsewhere", "bot", ANN, "not ours")])
            await anyio.sleep(0.2)
            assert looked.looks == before


async def test_in_order_per_destination_and_past_each_other(store: SqliteQueue) -> None:
    """A message that is tried again keeps the ones behind it waiting, and nobody else's."""
    channel = There()
    channel.script = [ChannelUnavailable("away", retry_after_s=0.3)]
    await post(store, ANN, "ann 1", "ann 2")
    await post(store, BOB, "bob 1")
    async with running(channel, store):
        await settled(store, "ann 1", "ann 2", "bob 1")

    assert [text for text in channel.tries if text.startswith("ann")] == ["ann 1", "ann 1", "ann 2"]
    assert channel.tries.index("bob 1") < channel.tries.index("ann 2")


async def test_what_a_server_refuses_for_good_lets_the_next_one_through(store: SqliteQueue) -> None:
    """Dead, shown, and not in the way."""
    channel = There()
    channel.script = [DeliveryFailed("no such room")]
    await post(store, ANN, "one", "two")
    async with running(channel, store):
        await settled(store, "two")

    [dead] = await store.outbox.rows(states=[OutboxState.DEAD])
    assert (dead.message.text, dead.error) == ("one", "no such room")


async def test_a_defect_in_one_probe_stops_nothing_else(store: SqliteQueue) -> None:
    """An exception that nobody foresaw belongs to one message; the others go out, and it is asked again."""
    channel = There(Redelivery.PROBE)
    [row] = await post(store, ANN, "unsure")
    await store.outbox.sending(row)
    await store.outbox.uncertain(row)
    channel.probes = [RuntimeError("a defect"), Receipt("found")]
    async with running(channel, store) as delivery:
        await post(store, BOB, "sure")
        delivery.wake()
        await settled(store, "unsure", "sure")

    assert channel.tries == ["sure"], "what was found is not sent again"


async def test_what_cannot_be_asked_about_is_shown_to_a_person_in_the_end(store: SqliteQueue) -> None:
    """A probe that fails for two days does not block its conversation for ever."""
    channel = There(Redelivery.PROBE)
    [row] = await post(store, ANN, "unsure")
    await store.outbox.sending(row)
    await store.outbox.uncertain(row)
    channel.probes = [ChannelUnavailable("the Sent folder is gone")]
    clock = ManualClock(SystemClock().now() + timedelta(days=3))
    async with running(channel, store, clock=clock):
        await post(store, ANN, "next")
        await settled(store, "unsure", state=OutboxState.UNKNOWN)
        await settled(store, "next")


async def test_an_old_message_gets_its_chance(store: SqliteQueue) -> None:
    """The machine was off for a week: the first hiccup afterwards does not make the answer undeliverable."""
    channel = There()
    channel.script = [ChannelUnavailable("not yet", retry_after_s=0.1)]
    await post(store, ANN, "old")
    async with running(channel, store, clock=ManualClock(SystemClock().now() + timedelta(days=7))):
        await settled(store, "old")


async def test_it_is_given_up_after_some_tries_all_the_same(store: SqliteQueue) -> None:
    """The counterpart: old, and it still does not work."""
    channel = There()
    channel.script = [ChannelUnavailable("no", retry_after_s=0.1)] * 20
    await post(store, ANN, "old")
    async with running(channel, store, clock=ManualClock(SystemClock().now() + timedelta(days=7))):
        await settled(store, "old", state=OutboxState.DEAD)

    assert len(channel.tries) == 5


@pytest.mark.parametrize("redelivery", [Redelivery.SAME_KEY, Redelivery.PROBE])
async def test_a_lost_answer_follows_the_rule_of_the_channel(
    redelivery: Redelivery, store: SqliteQueue
) -> None:
    """The same key again, or not at all if the probe finds it."""
    channel = There(redelivery)
    channel.script = [DeliveryUncertain("the line broke", retry_after_s=0.1)]
    channel.probes = [Receipt("found")]
    await post(store, ANN, "one")
    async with running(channel, store):
        await settled(store, "one")

    assert len(channel.tries) == (2 if redelivery is Redelivery.SAME_KEY else 1)


@pytest.mark.parametrize("redelivery", [Redelivery.SAME_KEY, Redelivery.PROBE])
async def test_a_later_try_does_not_settle_what_an_earlier_one_left_open(
    store: SqliteQueue, redelivery: Redelivery
) -> None:
    """
    A try of which nobody knows, then one that certainly was not taken: the first may have arrived all the same.

    The channel is told so at each further try, until somebody has looked (a probe finds nothing): then the
    slate is clean.
    """
    channel = There(redelivery)
    channel.script = [
        DeliveryUncertain("the line broke", retry_after_s=0.1),
        ChannelUnavailable("away", retry_after_s=0.1),
    ]
    await post(store, ANN, "one")
    async with running(channel, store):
        await settled(store, "one")

    looked = redelivery is Redelivery.PROBE
    assert channel.open_before == [False, not looked, not looked]


async def test_what_the_server_took_is_told_to_the_store_even_at_a_stop(store: SqliteQueue) -> None:
    """A cancellation between the server's yes and its record would park a message that has arrived."""

    class Slow:
        """A store whose ``record_send`` takes a moment."""

        def __init__(self) -> None:
            self.telling = anyio.Event()

        def __getattr__(self, name: str) -> Any:
            return getattr(store.outbox, name)

        async def record_send(self, row: OutboxRow, provider_id: str, **more: Any) -> None:
            self.telling.set()
            await anyio.sleep(0.2)
            await store.outbox.record_send(row, provider_id, **more)

    slow = Slow()
    await post(store, ANN, "one")
    async with running(There(Redelivery.REVIEW), wrapping(outbox=lambda _: slow)(store)):
        await slow.telling.wait()
    # The block was left by cancelling everything.

    await settled(store, "one")


async def test_a_full_disk_after_the_servers_yes_sends_nothing_twice(store: SqliteQueue) -> None:
    """Until the store knows, the row stays in hand."""

    class Full:
        failures = 2

        def __getattr__(self, name: str) -> Any:
            return getattr(store.outbox, name)

        async def record_send(self, row: OutboxRow, provider_id: str, **more: Any) -> None:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("the disk is full")
            await store.outbox.record_send(row, provider_id, **more)

    channel = There()
    await post(store, ANN, "one")
    async with running(channel, wrapping(outbox=lambda _: Full())(store)):
        await settled(store, "one")

    assert channel.tries == ["one"]


@pytest.mark.parametrize("redelivery", [Redelivery.PROBE, Redelivery.REVIEW])
async def test_a_full_disk_while_the_server_is_asked_sends_nothing_twice(
    redelivery: Redelivery, store: SqliteQueue
) -> None:
    """The row was left as it was in the middle: that it may have arrived is not forgotten."""

    class Full:
        failures = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(store.outbox, name)

        async def record_failure(self, row: OutboxRow, error: str, **more: Any) -> None:
            if self.failures and not more["certain"]:
                self.failures -= 1
                raise StoreUnavailable("the disk is full")
            await store.outbox.record_failure(row, error, **more)

    [row] = await post(store, ANN, "one")
    await store.outbox.sending(row)
    await store.outbox.uncertain(row)
    if redelivery is Redelivery.REVIEW:
        await store.outbox.sending(row)  # a life that ended before it was told how it went
    channel = There(redelivery)
    channel.probes = [ChannelUnavailable("away"), Receipt("taken-before")]
    async with running(channel, wrapping(outbox=lambda _: Full())(store)):
        state = OutboxState.SENT if redelivery is Redelivery.PROBE else OutboxState.UNKNOWN
        await settled(store, "one", state=state)

    assert channel.tries == []


async def test_what_nobody_is_there_for_is_kept_without_trying_and_sent_when_somebody_comes(
    store: SqliteQueue,
) -> None:
    """One try, then silence, however long it takes; others are not kept waiting."""
    channel = There()
    channel.script = [NoRecipient("nobody"), None]
    [row, _] = await post(store, ANN, "ann 1", "ann 2")
    wakeups = Wakeups()
    async with running(channel, store, wakeups=wakeups) as delivery:
        while "ann 1" not in channel.tries:
            await anyio.sleep(0.01)
        await post(store, BOB, "bob 1")
        delivery.wake()
        await settled(store, "bob 1")
        await anyio.sleep(0.3)  # longer than the row itself waits
        delivery.wake()
        await anyio.sleep(0.1)
        assert channel.tries == ["ann 1", "bob 1"]
        wakeups.attached.fire(SessionKey("elsewhere", "ann"))
        wakeups.attached.fire(ANN)
        await settled(store, "ann 1", "ann 2", "bob 1")
    assert channel.tries == ["ann 1", "bob 1", "ann 1", "ann 2"]
    assert row.message.session == ANN


async def test_a_drain_sends_what_is_due_and_ends(store: SqliteQueue) -> None:
    """`run` returns when nothing is due; at once if the link is down."""
    channel = There()
    await post(store, ANN, "one", "two")
    delivery = Delivery(channel, store, SystemClock())
    delivery.link(up=True)
    delivery.drain()
    with anyio.fail_after(60):
        await delivery.run()
    assert channel.tries == ["one", "two"]

    await post(store, ANN, "three")
    away = Delivery(channel, store, SystemClock())
    away.drain()
    with anyio.fail_after(60):
        await away.run()
    assert channel.tries == ["one", "two"]


async def test_what_is_remembered_is_remembered_where_it_arrived(store: SqliteQueue) -> None:
    """Its line stands in the history of the conversation that the channel found, and not before it is sent."""
    waiting, arriving = anyio.Event(), anyio.Event()

    class Finds(There):
        async def deliver(self, message: OutboundMessage, *, uncertain: Any) -> Receipt:
            waiting.set()
            await arriving.wait()
            return Receipt("taken", session=BOB)

    named = SessionKey("there", "@ben:hs.test")
    await store.outbox.post(
        [NewOutbound("there", "bot", named, "Dinner!", OutboundKind.MESSAGE, remembered=True)]
    )
    await post(store, ANN, "an answer")  # its turn has its lines: this one makes none
    async with running(Finds(), store):
        await waiting.wait()
        assert await store.journal.lines() == []
        arriving.set()
        rows = await settled(store, "Dinner!", "an answer")
    lines = await store.journal.lines()
    assert [(line.session, line.message.role, line.message.content) for line in lines] == [
        (BOB, "assistant", "Dinner!")
    ]

    for row in rows:  # told again, as after a crash
        await store.outbox.record_send(row, "taken", into=BOB)
    assert len(await store.journal.lines()) == 1


async def test_what_was_refused_is_not_remembered(store: SqliteQueue) -> None:
    """Nobody has read it, so no history says that it was said."""
    channel = There()
    channel.script = [DeliveryFailed("no such room")]
    await store.outbox.post(
        [NewOutbound("there", "bot", ANN, "Dinner!", OutboundKind.MESSAGE, remembered=True)]
    )
    async with running(channel, store):
        await settled(store, "Dinner!", state=OutboxState.DEAD)
    assert await store.journal.lines() == []
