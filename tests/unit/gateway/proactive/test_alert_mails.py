"""What the owner is told by mail comes in few letters, not in one for each event."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from agent_core.messages import Audience, Sender, SessionKey
from gateway.proactive.owner_alerts import EMAIL_INTERVAL_S, OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.clock import ManualClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.owner_world import inbound


@pytest.mark.parametrize("is_email_style", [True, False])
async def test_ten_events_are_two_letters(tmp_path: Path, is_email_style: bool) -> None:
    """
    The first at once, the others together a quarter of an hour later.

    Where it is a chat (the control) each is told when it comes.
    """
    store = await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock())
    clock = ManualClock()
    target = OwnerContact(
        store.state,
        channels={"email": LoopbackChannel(LoopbackServer(), name="email", email_style=is_email_style)},
    )
    notes = OwnerAlerts(
        store=store,
        target=target,
        notifier=OwnerNotifier(store, target, clock),
        clock=clock,
    )
    notes.look_every_s = 0.01
    thread = SessionKey("email", "dm-ann@mail.test")
    person = Sender(address="ann@mail.test", verified=True)
    said = inbound(0, channel="email", session=thread, sender=person, audience=Audience.DIRECT)
    await target.learn(said)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notes.run)
        for number in range(10):
            notes.alert(f"thing {number}", f"event {number}")
            with anyio.fail_after(60):
                while notes.state()["alerts_waiting"] and not (is_email_style and number):
                    await anyio.sleep(0.01)
        before = len(await store.outbox.rows())
        clock.advance(EMAIL_INTERVAL_S + 1)
        notes.alert("one more", "event 10")
        with anyio.fail_after(60):
            while notes.state()["alerts_waiting"]:
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    texts = [row.message.text for row in await store.outbox.rows()]
    await store.aclose()
    assert (before, len(texts)) == ((1, 2) if is_email_style else (10, 11))
    if is_email_style:
        assert texts[0].startswith("10 things need you:\n\n- event 1\n")
