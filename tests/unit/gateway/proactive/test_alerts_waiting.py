"""What the owner is to know while there is no place to tell it in: kept, shown, and told once when there is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import Audience, Sender, SessionKey
from gateway.cli.render.schedule import at_a_glance
from gateway.proactive.alerts import MAX_ALERTS, OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.queue.sqlite.store import SqliteQueue
from gateway.queue.stores import StateStore
from gateway.queue.wakeups import Wakeups
from gateway.system.clock import SystemClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.doubles.queue import wrapping
from tests.owner_world import inbound

ROOM = SessionKey("matrix", "dm-@ann:hs.test")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock()) as opened:
        yield opened


class Died(Exception):
    """The process ended here."""


class Dying:
    """A store that lets the process die before what was told is forgotten."""

    def __init__(self, state: StateStore) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    async def swap(self, topic: str, old: str | None, new: str) -> bool:
        if topic == "owner.alerts" and '"alerts": {}' in new:
            raise Died
        return await self._state.swap(topic, old, new)


def notes_of(store: Any, *, may_tell: bool = True, wakeups: Wakeups | None = None) -> OwnerAlerts:
    """A new process."""
    target = OwnerContact(store.state, channels={"matrix": LoopbackChannel(LoopbackServer(), name="matrix")})
    return OwnerAlerts(
        store=store,
        target=target,
        notifier=OwnerNotifier(store, target, SystemClock()),
        clock=SystemClock(),
        wakeups=wakeups,
        may_tell=lambda: may_tell,
    )


async def learn(notes: OwnerAlerts) -> None:
    """The owner writes directly."""
    ann = Sender(address="@ann:hs.test", verified=True)
    said = inbound(0, channel="matrix", session=ROOM, sender=ann, audience=Audience.DIRECT)
    await notes._target.learn(said)


async def texts(store: SqliteQueue) -> list[str]:
    return [row.message.text for row in await store.outbox.rows()]


async def test_an_alert_without_a_place_is_kept_over_a_restart_shown_and_told_once(store) -> None:
    """No conversation with the owner: it waits, `status` counts it and says why; then it comes, and only once."""
    first = notes_of(store)
    first.alert("brake", "The circuit breaker is open.")
    await first._deliver_alerts()
    assert await texts(store) == []
    assert first.state() == {"alerts_waiting": 1, "why": "the owner has no direct conversation yet"}
    assert at_a_glance({"owner": first.state()}) == [
        "owner      1 alert for you waits: the owner has no direct conversation yet"
    ]
    second = notes_of(store)
    second.alert("channel email", "The channel email needs you.")
    await second._deliver_alerts()
    assert second.state()["alerts_waiting"] == 2
    third = notes_of(store)
    await learn(third)
    await third._deliver_alerts()
    assert await texts(store) == [
        "2 things need you:\n\n- The circuit breaker is open.\n- The channel email needs you."
    ]
    assert third.state() == {"alerts_waiting": 0, "why": ""}
    await third._deliver_alerts()
    await notes_of(store)._deliver_alerts()
    assert len(await texts(store)) == 1


async def test_a_newer_text_of_an_alert_that_waits_counts_also_where_many_others_do(store) -> None:
    """Only what is another subject is dropped beyond the limit."""
    notes = notes_of(store)
    notes.alert("mcp far", "It is away.", "away-1")
    for number in range(MAX_ALERTS):
        notes.alert(f"subject {number}", f"Subject {number} needs you.")
    notes.alert("mcp far", "It wants a login.", "need-1")
    await learn(notes)
    for _ in range(2 * MAX_ALERTS):
        await notes._deliver_alerts()
    told = await texts(store)
    assert "It wants a login." in told
    assert "It is away." not in told
    assert f"Subject {MAX_ALERTS - 1} needs you." not in told


async def test_a_death_before_it_is_forgotten_tells_nothing_twice(store) -> None:
    """The note is in the outbox, the process dies, the next one has it still: it is not told again; new ones are."""
    await notes_of(store).keep("brake", "The circuit breaker is open.")
    dying = notes_of(wrapping(state=Dying)(store))
    await learn(dying)
    with pytest.raises(Died):
        await dying._deliver_alerts()
    following = notes_of(store)
    following.alert("channel email", "The channel email needs you.")
    for _ in range(3):
        await following._deliver_alerts()
    assert await texts(store) == ["The circuit breaker is open.", "The channel email needs you."][::-1]
    await notes_of(store).keep("brake", "The circuit breaker is open.")
    await notes_of(store)._deliver_alerts()
    assert len(await texts(store)) == 3, "the same trouble of another day is told again"


async def test_what_is_kept_after_a_death_before_it_is_forgotten_tells_nothing_twice(store) -> None:
    """The next process keeps something before it has tried to tell what it found: that stays what it was."""
    await notes_of(store).keep("brake", "The circuit breaker is open.")
    dying = notes_of(wrapping(state=Dying)(store))
    await learn(dying)
    with pytest.raises(Died):
        await dying._deliver_alerts()
    following = notes_of(store)
    await following.keep("job 1", "The job 1 was not run.")
    for _ in range(3):
        await following._deliver_alerts()
    assert await texts(store) == ["The job 1 was not run.", "The circuit breaker is open."]


async def test_what_is_told_once_is_told_after_every_death_that_came_before(store) -> None:
    """Whoever alerts does not know whether it was told, and says it again at each start; another key is news."""
    dying = notes_of(wrapping(state=Dying)(store))
    dying.alert("mcp far", "It wants a login.", "need-1")  # and dies at once
    dying = notes_of(wrapping(state=Dying)(store))
    dying.alert("mcp far", "It wants a login.", "need-1")
    dying.alert("brake", "The circuit breaker is open.")
    await dying._deliver_alerts()  # no place yet: it is kept
    await learn(dying)
    await dying._deliver_alerts()  # the other one
    with pytest.raises(Died):
        await dying._deliver_alerts()
    for _ in range(2):
        following = notes_of(store)
        following.alert("mcp far", "It wants a login.", "need-1")
        for _ in range(2):
            await following._deliver_alerts()
    assert await texts(store) == ["It wants a login.", "The circuit breaker is open."]
    following.alert("mcp far", "It wants a login.", "need-2")
    await following._deliver_alerts()
    following.alert("mcp far", "It wants a login.", "need-2")
    await following._deliver_alerts()
    assert len(await texts(store)) == 3
    assert following.state()["alerts_waiting"] == 0


async def test_it_is_told_soon_after_the_owner_has_written(store) -> None:
    """The running notes look again by themselves."""
    notes = notes_of(store)
    notes.alert("brake", "The circuit breaker is open.")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notes.run)
        with anyio.fail_after(60):
            while notes.state()["why"] == "":
                await anyio.sleep(0.01)
            await learn(notes)
            notes.look()
            while not await texts(store):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kept", ["", "no json", "[]", '{"alerts": 3}', '{"alerts": ["x"]}'])
async def test_what_is_damaged_stops_nothing(store, kept: str) -> None:
    """It is as if nothing had been kept."""
    await store.state.write("owner.alerts", kept)
    notes = notes_of(store)
    await learn(notes)
    notes.alert("brake", "The circuit breaker is open.")
    await notes._deliver_alerts()
    assert await texts(store) == ["The circuit breaker is open."]


async def test_what_another_process_knows_is_told_by_the_one_that_tells(store) -> None:
    """Two others put alerts into the store; the one that tells finds them there, and each is told once."""
    wakeups, kept = Wakeups(), list[str]()
    wakeups.alert_kept.connect(kept.append)
    teller, others = notes_of(store), [notes_of(store, may_tell=False, wakeups=wakeups) for _ in range(2)]
    await learn(teller)
    await teller.look_elsewhere()
    assert not teller._news.is_set()
    async with anyio.create_task_group() as tasks:
        for number, notes in enumerate(others):
            tasks.start_soon(notes.run)
            notes.alert(f"channel {number}", f"The channel {number} needs you.")
        with anyio.fail_after(60):
            while any(notes.state()["alerts_waiting"] for notes in others):
                await anyio.sleep(0.01)
            assert await texts(store) == []
            assert sorted(kept) == ["channel 0", "channel 1"]
            await teller.look_elsewhere()
            assert teller._news.is_set()
            tasks.start_soon(teller.run)
            while teller.state()["alerts_waiting"] or len(await texts(store)) < 2:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert sorted(await texts(store)) == ["The channel 0 needs you.", "The channel 1 needs you."]
    assert await notes_of(store)._deliver_alerts() == inf


async def test_what_comes_from_elsewhere_during_a_message_is_not_forgotten_with_it(store) -> None:
    """What was told is taken out of what the store has then, not of what it had before."""
    await notes_of(store).keep("brake", "The circuit breaker is open.")

    class Meanwhile:
        """An outbox before whose message another process has something to tell."""

        def __init__(self, outbox: Any) -> None:
            self._outbox = outbox

        async def post(self, *args: Any, **more: Any) -> Any:
            other = notes_of(store, may_tell=False)
            other.alert("channel desk", "The channel desk needs you.")
            await other._pass_on()
            return await self._outbox.post(*args, **more)

    teller = notes_of(wrapping(outbox=Meanwhile)(store))
    await learn(teller)
    await teller._deliver_alerts()
    assert await texts(store) == ["The circuit breaker is open."]
    following = notes_of(store)
    await following._deliver_alerts()
    await following._deliver_alerts()
    assert await texts(store) == ["The channel desk needs you.", "The circuit breaker is open."]


async def test_a_death_with_news_from_elsewhere_tells_nothing_twice(store) -> None:
    """
    The note is in the outbox, the process dies, and another one has put its alert beside it: each is told once.

    So it is with those that are told once by their key.
    """
    await notes_of(store).keep("brake", "The circuit breaker is open.")
    dying = notes_of(wrapping(state=Dying)(store))
    await learn(dying)
    with pytest.raises(Died):
        await dying._deliver_alerts()
    for number in range(2):
        other = notes_of(store, may_tell=False)
        other.alert(f"channel {number}", f"The channel {number} needs you.")
        other.alert(f"mcp {number}", f"The server {number} wants a login.", "need-1")
        await other._pass_on()
        assert other.state()["alerts_waiting"] == 0
    for _ in range(5):
        await notes_of(store)._deliver_alerts()
    assert await texts(store) == [
        "The server 1 wants a login.",
        "The server 0 wants a login.",
        "2 things need you:\n\n- The channel 0 needs you.\n- The channel 1 needs you.",
        "The circuit breaker is open.",
    ]


async def test_news_from_elsewhere_that_go_again_tell_nothing_twice(store) -> None:
    """After such a death another process says something else of the same thing, and a third one what was told."""
    await notes_of(store).keep("brake", "The circuit breaker is open.")
    dying = notes_of(wrapping(state=Dying)(store))
    await learn(dying)
    with pytest.raises(Died):
        await dying._deliver_alerts()
    for text in ("The circuit breaker was reset.", "The circuit breaker is open."):
        other = notes_of(store, may_tell=False)
        other.alert("brake", text)
        await other._pass_on()
    for _ in range(3):
        await notes_of(store)._deliver_alerts()
    assert await texts(store) == ["The circuit breaker is open."]


async def test_who_goes_on_telling_after_all_tells_what_it_had_left_to_another_process(store) -> None:
    """It was to give the owner's account back, could not, and has it still: its next look finds the alert."""
    leaving = [True]
    notes = notes_of(store)
    notes._may_tell = lambda: not leaving
    await learn(notes)
    notes.alert("channel desk", "The channel desk needs you.")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notes.run)
        with anyio.fail_after(60):
            while notes.state()["alerts_waiting"]:
                await anyio.sleep(0.01)
            leaving.clear()
            while not await texts(store):
                await notes.look_elsewhere()
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert await texts(store) == ["The channel desk needs you."]


async def test_who_takes_over_tells_what_it_had_left_to_another_process(store) -> None:
    """The process that was to tell it has died: nothing else wakes the one that has put it there."""
    mine: list[str] = []
    notes = notes_of(store)
    notes._may_tell = lambda: bool(mine)
    await learn(notes)
    notes.alert("channel desk", "The channel desk needs you.")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notes.run)
        with anyio.fail_after(60):
            while notes.state()["alerts_waiting"]:
                await anyio.sleep(0.01)
            assert await texts(store) == []
            mine.append("the owner")
            notes._taken("")
            while not await texts(store):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert await texts(store) == ["The channel desk needs you."]


async def test_what_has_no_room_in_the_store_waits_where_it_is(store) -> None:
    """The owner cannot be reached for long; later there is room, and nothing of it is lost."""
    notes, other = notes_of(store), notes_of(store, may_tell=False)
    for number in range(MAX_ALERTS):
        notes.alert(f"thing {number}", f"event {number}")
    await notes._deliver_alerts()
    other.alert("channel desk", "The channel desk needs you.")
    await other._pass_on()
    assert other.state()["alerts_waiting"] == 1
    await learn(notes)
    await notes._deliver_alerts()
    await other._pass_on()
    await notes._deliver_alerts()
    assert (await texts(store))[0] == "The channel desk needs you."
    assert len(await texts(store)) == 2
