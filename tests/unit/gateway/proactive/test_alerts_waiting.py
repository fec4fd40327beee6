"""What the owner is to know while there is no place to tell it in: kept, shown, and told once when there is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import Audience, Sender, SessionKey
from channels.terminal import TerminalChannel
from gateway.operations.render.schedule_text import summary_lines
from gateway.proactive.owner_alerts import MAX_ALERTS, OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import OutboxStore
from gateway.store.wakeups import Wakeups
from gateway.system.clock import SystemClock
from tests.contract.queue_data import out
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
    """A store that lets the process die as soon as something was posted."""

    def __init__(self, outbox: OutboxStore) -> None:
        self._outbox = outbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    async def post(self, *given: Any, **more: Any) -> None:
        await self._outbox.post(*given, **more)
        raise Died


def notes_of(store: Any, *, wakeups: Wakeups | None = None) -> OwnerAlerts:
    """A new process."""
    target = OwnerContact(store.state, channels={"matrix": LoopbackChannel(LoopbackServer(), name="matrix")})
    return OwnerAlerts(
        store=store,
        target=target,
        notifier=OwnerNotifier(store, target, SystemClock()),
        clock=SystemClock(),
        wakeups=wakeups or Wakeups(),
    )


async def learn(notes: OwnerAlerts) -> None:
    """The owner writes directly."""
    ann = Sender(address="@ann:hs.test", verified=True)
    said = inbound(0, channel="matrix", session=ROOM, sender=ann, audience=Audience.DIRECT)
    await notes.target.learn(said)


async def texts(store: SqliteQueue) -> list[str]:
    return [row.message.text for row in await store.outbox.rows()]


async def test_an_alert_without_a_place_is_kept_over_a_restart_shown_and_told_once(store) -> None:
    """No conversation with the owner: it waits, `status` counts it and says why; then it comes, and only once."""
    first = notes_of(store)
    first.alert("brake", "The circuit breaker is open.")
    await first._deliver_alerts()
    assert await texts(store) == []
    assert first.state() == {"alerts_waiting": 1, "why": "the owner has no direct conversation yet"}
    assert summary_lines({"owner": first.state()}) == [
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
    await notes_of(store).store_now("brake", "The circuit breaker is open.")
    dying = notes_of(wrapping(outbox=Dying)(store))
    await learn(dying)
    with pytest.raises(Died):
        await dying._deliver_alerts()
    following = notes_of(store)
    following.alert("channel email", "The channel email needs you.")
    for _ in range(3):
        await following._deliver_alerts()
    assert await texts(store) == ["The circuit breaker is open.", "The channel email needs you."][::-1]
    await notes_of(store).store_now("brake", "The circuit breaker is open.")
    await notes_of(store)._deliver_alerts()
    assert len(await texts(store)) == 3, "the same trouble of another day is told again"


async def test_what_is_kept_after_a_death_before_it_is_forgotten_tells_nothing_twice(store) -> None:
    """The next process keeps something before it has tried to tell what it found: that stays what it was."""
    await notes_of(store).store_now("brake", "The circuit breaker is open.")
    dying = notes_of(wrapping(outbox=Dying)(store))
    await learn(dying)
    with pytest.raises(Died):
        await dying._deliver_alerts()
    following = notes_of(store)
    await following.store_now("job 1", "The job 1 was not run.")
    for _ in range(3):
        await following._deliver_alerts()
    assert await texts(store) == ["The job 1 was not run.", "The circuit breaker is open."]


async def test_what_is_told_once_is_told_after_every_death_that_came_before(store) -> None:
    """Whoever alerts does not know whether it was told, and says it again at each start; another key is news."""
    dying = notes_of(wrapping(outbox=Dying)(store))
    dying.alert("mcp far", "It wants a login.", "need-1")  # and dies at once
    dying = notes_of(wrapping(outbox=Dying)(store))
    dying.alert("mcp far", "It wants a login.", "need-1")
    dying.alert("brake", "The circuit breaker is open.")
    await dying._deliver_alerts()  # no place yet: it is kept
    await learn(dying)
    for _ in range(2):  # the other one, and this one
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


async def test_two_processes_that_found_the_same_alert_tell_it_once(store) -> None:
    """The second one finds it gone, and nothing is posted; with a newer text meanwhile that one is told."""
    await notes_of(store).store_now("brake", "The circuit breaker is open.")
    first, second = notes_of(store), notes_of(store)
    await learn(first)
    await learn(second)
    found = await store.state.read_below("owner.alerts/")
    assert await first._deliver_alerts() > 0
    assert await store.outbox.post([out("again")], texts=found) == []
    await second._deliver_alerts()
    assert await texts(store) == ["The circuit breaker is open."]
    await notes_of(store).store_now("brake", "It is open still.")
    assert await store.outbox.post([out("again")], texts=found) == []
    await second._deliver_alerts()
    assert await texts(store) == ["It is open still.", "The circuit breaker is open."]


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
            notes.send_due()
            while not await texts(store):
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kept", ["", "no json", "[]", "3", '["", "x", "", ""]'])
async def test_what_is_damaged_stops_nothing(store, kept: str) -> None:
    """It is as if nothing had been kept."""
    await store.state.write("owner.alerts/other", kept)
    notes = notes_of(store)
    await learn(notes)
    notes.alert("brake", "The circuit breaker is open.")
    await notes._deliver_alerts()
    assert await texts(store) == ["The circuit breaker is open."]


@pytest.mark.parametrize(("channel", "is_learned"), [(LoopbackChannel, True), (TerminalChannel, False)])
async def test_a_channel_that_cannot_write_first_is_no_contact(
    store: SqliteQueue, channel: Any, is_learned: bool
) -> None:
    """What the owner says there is answered, and alerts go elsewhere; the first is the control."""
    made = channel(LoopbackServer(), name="matrix") if channel is LoopbackChannel else channel()
    target = OwnerContact(store.state, channels={"matrix": made})
    ann = Sender(address="@ann:hs.test", verified=True)
    await target.learn(inbound(0, channel="matrix", session=ROOM, sender=ann, audience=Audience.DIRECT))
    assert (await target.get() is not None) is is_learned
